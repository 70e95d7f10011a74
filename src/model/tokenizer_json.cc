// Tokenizers from the text of a tokenizer.json (format of the Hugging Face tokenizers library).
#include "base/json.h"
#include "model/bpe_tokenizer.h"

namespace pith {

namespace {

constexpr size_t kMaxDepth = 64;

// Where in the document the parser stands, as far as it matters.
enum class Place { kElsewhere, kModel, kVocab, kMerges, kMergePair };

// SAX handler. The vocabulary and the merges, which make up nearly all of the file, go straight into the builder;
// everything else becomes a small Json document.
class TokenizerHandler final : public nlohmann::json_sax<Json> {
 public:
  explicit TokenizerHandler(const std::string& what) : what_(what), builder_(what) {}

  BpeBuilder& builder() { return builder_; }
  const Json& document() const { return document_; }
  const Status& status() const { return status_; }
  bool has_vocab() const { return has_vocab_; }
  bool has_merges() const { return has_merges_; }

  bool null() override { return Value(nullptr); }
  bool boolean(bool value) override { return Value(value); }
  bool number_integer(int64_t value) override {
    if (place_ == Place::kVocab) return Check(builder_.AddToken(key_, value));
    return Value(value);
  }
  bool number_unsigned(uint64_t value) override {
    if (place_ == Place::kVocab) {
      return Check(builder_.AddToken(key_, value > INT64_MAX ? INT64_MAX : static_cast<int64_t>(value)));
    }
    return Value(value);
  }
  bool number_float(double value, const std::string&) override { return Value(value); }
  bool binary(Json::binary_t&) override { return Fail("binary data"); }

  bool string(std::string& value) override {
    if (place_ == Place::kMerges) return Check(builder_.AddMergeLine(value));
    if (place_ == Place::kMergePair) {
      if (pair_size_ >= 2) return Fail("a merge has more than two parts");
      pair_[pair_size_++] = value;
      return true;
    }
    return Value(value);
  }

  bool key(std::string& value) override {
    key_.swap(value);
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::kElsewhere && stack_.size() == 1 && key_ == "model") {
      return Open(Json::object(), Place::kModel);
    }
    if (place_ == Place::kModel && stack_.size() == 2 && key_ == "vocab") {
      if (has_vocab_) return Fail("'model.vocab' occurs twice");
      has_vocab_ = true;
      place_ = Place::kVocab;
      return true;
    }
    return Open(Json::object(), place_);
  }

  bool end_object() override {
    if (place_ == Place::kVocab) {
      place_ = Place::kModel;
      return true;
    }
    if (place_ == Place::kModel && stack_.size() == 2) place_ = Place::kElsewhere;
    stack_.pop_back();
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::kModel && stack_.size() == 2 && key_ == "merges") {
      if (has_merges_) return Fail("'model.merges' occurs twice");
      has_merges_ = true;
      place_ = Place::kMerges;
      return true;
    }
    if (place_ == Place::kMerges) {
      place_ = Place::kMergePair;
      pair_size_ = 0;
      return true;
    }
    return Open(Json::array(), place_);
  }

  bool end_array() override {
    if (place_ == Place::kMergePair) {
      place_ = Place::kMerges;
      if (pair_size_ != 2) return Fail("a merge has fewer than two parts");
      return Check(builder_.AddMerge(pair_[0], pair_[1]));
    }
    if (place_ == Place::kMerges) {
      place_ = Place::kModel;
      return true;
    }
    stack_.pop_back();
    return true;
  }

  bool parse_error(size_t, const std::string&, const Json::exception& exception) override {
    return Fail(exception.what());
  }

 private:
  bool Check(Status status) {
    if (status.ok()) return true;
    if (status_.ok()) status_ = std::move(status);
    return false;
  }
  bool Fail(const std::string& message) { return Check(Error{ErrorCode::kMalformed, what_ + ": " + message}); }

  // Where the next value of the open object or array goes; null after a failure.
  Json* Slot() {
    if (place_ == Place::kVocab || place_ == Place::kMerges || place_ == Place::kMergePair) {
      Fail(place_ == Place::kVocab ? "the id of a token in 'model.vocab' is not an integer"
                                   : "'model.merges' holds something other than merges");
      return nullptr;
    }
    if (stack_.empty()) return &document_;
    Json& parent = *stack_.back();
    if (parent.is_object()) return &parent[key_];
    parent.push_back(nullptr);
    return &parent.back();
  }

  template <class T>
  bool Value(T&& value) {
    Json* slot = Slot();
    if (slot == nullptr) return false;
    *slot = std::forward<T>(value);
    return true;
  }

  bool Open(Json container, Place place) {
    if (stack_.size() >= kMaxDepth) return Fail("JSON is nested too deeply");
    Json* slot = Slot();
    if (slot == nullptr) return false;
    *slot = std::move(container);
    stack_.push_back(slot);
    place_ = place;
    return true;
  }

  std::string what_;
  BpeBuilder builder_;
  Json document_;
  std::vector<Json*> stack_;  // the open objects and arrays
  std::string key_;
  Place place_ = Place::kElsewhere;
  bool has_vocab_ = false;
  bool has_merges_ = false;
  std::string pair_[2];
  size_t pair_size_ = 0;
  Status status_;
};

// Reads the components around the model, naming what cannot be supported.
class ComponentReader {
 public:
  ComponentReader(const std::string& what, const Json& document) : what_(what), document_(document) {}

  Status ReadModel(bool* ignore_merges, bool* has_unk) const {
    const Json& model = Member(document_, "model");
    if (!model.is_object()) return Malformed("'model' is not an object");
    // Old files leave the type of BPE out.
    if (model.contains("type") && Text(model, "type") != "BPE")
      return Unsupported("model type '" + Text(model, "type") + "'");
    for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& value = Member(model, name);
      const bool off = value.is_null() || (value.is_string() && value.get_ref<const std::string&>().empty()) ||
                       (value.is_number() && value.get<double>() == 0.0);
      if (!off) return Unsupported(std::string("'model.") + name + "'");
    }
    PITH_ASSIGN(const bool byte_fallback, Flag(model, "byte_fallback"));
    if (byte_fallback) return Unsupported("'model.byte_fallback'");
    PITH_ASSIGN(*ignore_merges, Flag(model, "ignore_merges"));
    *has_unk = !Member(model, "unk_token").is_null();
    return {};
  }

  Status ReadNormalizer(bool* nfc) const {
    std::vector<const Json*> list;
    PITH_RETURN_IF_ERROR(Flatten("normalizer", "normalizers", &list));
    for (const Json* normalizer : list) {
      if (Text(*normalizer, "type") != "NFC") return Unsupported("normalizer '" + Text(*normalizer, "type") + "'");
      *nfc = true;
    }
    return {};
  }

  Status ReadPreTokenizer(PreTokenizer* pre) const {
    std::vector<const Json*> list;
    PITH_RETURN_IF_ERROR(Flatten("pre_tokenizer", "pretokenizers", &list));
    for (size_t i = 0; i < list.size(); ++i) {
      const Json& step = *list[i];
      const std::string type = Text(step, "type");
      // The words must be turned into the byte alphabet, and nothing can split them afterwards.
      if ((type == "ByteLevel") != (i + 1 == list.size())) {
        return Unsupported("a pre_tokenizer whose last step is not its only ByteLevel");
      }
      if (type == "Split") {
        PITH_RETURN_IF_ERROR(AddSplit(step, pre));
      } else if (type == "Digits") {
        PITH_ASSIGN(const bool individual, Flag(step, "individual_digits"));
        PITH_RETURN_IF_ERROR(pre->AddDigits(individual));
      } else if (type == "ByteLevel") {
        PITH_ASSIGN(const bool add_prefix_space, Flag(step, "add_prefix_space", true));
        PITH_ASSIGN(const bool use_regex, Flag(step, "use_regex", true));
        PITH_RETURN_IF_ERROR(pre->AddByteLevel(add_prefix_space, use_regex));
      } else {
        return Unsupported("pre_tokenizer '" + type + "'");
      }
    }
    if (list.empty()) return Unsupported("a pre_tokenizer without ByteLevel");
    return {};
  }

  // The id that TemplateProcessing puts in front of a single sequence, or -1.
  Status ReadPostProcessor(int32_t* bos) const {
    std::vector<const Json*> list;
    PITH_RETURN_IF_ERROR(Flatten("post_processor", "processors", &list));
    for (const Json* processor : list) {
      const std::string type = Text(*processor, "type");
      if (type == "ByteLevel") continue;  // only moves offsets
      if (type != "TemplateProcessing") return Unsupported("post_processor '" + type + "'");
      const Json& single = Member(*processor, "single");
      if (!single.is_array()) return Malformed("'post_processor.single' is not an array");
      bool seen_sequence = false;
      for (const Json& item : single) {
        if (!Member(item, "Sequence").is_null()) {
          seen_sequence = true;
          continue;
        }
        const Json& ids =
            Member(Member(Member(*processor, "special_tokens"), Text(Member(item, "SpecialToken"), "id")), "ids");
        if (!ids.is_array() || ids.empty() || !ids[0].is_number_unsigned()) {
          return Malformed("the post_processor has a special token without ids");
        }
        if (seen_sequence || *bos >= 0 || ids.size() != 1) {
          return Unsupported("a post_processor that adds more than one token in front");
        }
        const auto id = ids[0].get<uint64_t>();
        if (id >= static_cast<uint64_t>(BpeBuilder::kMaxTokens)) return Malformed("a special token id is out of range");
        *bos = static_cast<int32_t>(id);
      }
    }
    return {};
  }

  Status CheckDecoder() const {
    std::vector<const Json*> list;
    PITH_RETURN_IF_ERROR(Flatten("decoder", "decoders", &list));
    for (const Json* decoder : list) {
      if (Text(*decoder, "type") != "ByteLevel") return Unsupported("decoder '" + Text(*decoder, "type") + "'");
    }
    if (list.empty()) return Unsupported("a missing decoder");
    return {};
  }

  Status ReadAddedTokens(std::vector<AddedToken>* added) const {
    const Json& list = Member(document_, "added_tokens");
    if (list.is_null()) return {};
    if (!list.is_array()) return Malformed("'added_tokens' is not an array");
    for (const Json& item : list) {
      const Json& id = Member(item, "id");
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(BpeBuilder::kMaxTokens)) {
        return Malformed("the id of an added token is not an integer in range");
      }
      AddedToken token;
      token.id = static_cast<int32_t>(id.get<uint64_t>());
      token.content = Text(item, "content");
      PITH_ASSIGN(token.special, Flag(item, "special"));
      PITH_ASSIGN(token.lstrip, Flag(item, "lstrip"));
      PITH_ASSIGN(token.rstrip, Flag(item, "rstrip"));
      PITH_ASSIGN(token.single_word, Flag(item, "single_word"));
      PITH_ASSIGN(token.normalized, Flag(item, "normalized"));
      added->push_back(std::move(token));
    }
    return {};
  }

  Error Malformed(const std::string& message) const { return {ErrorCode::kMalformed, what_ + ": " + message}; }
  Error Unsupported(const std::string& what) const {
    return {ErrorCode::kUnsupported, what_ + ": " + what + " is not supported"};
  }

 private:
  static const Json& Member(const Json& object, const std::string& name) {
    static const Json null;
    if (!object.is_object()) return null;
    const auto found = object.find(name);
    return found == object.end() ? null : *found;
  }

  static std::string Text(const Json& object, const char* name) {
    const Json& value = Member(object, name);
    return value.is_string() ? value.get<std::string>() : std::string();
  }

  Result<bool> Flag(const Json& object, const char* name, bool fallback = false) const {
    const Json& value = Member(object, name);
    if (value.is_null()) return fallback;
    if (!value.is_boolean()) return Malformed(std::string("'") + name + "' is not true or false");
    return value.get<bool>();
  }

  // The steps of a component: itself, or those of a (possibly nested) Sequence, in order.
  Status Flatten(const char* component, const char* list_name, std::vector<const Json*>* out) const {
    std::vector<const Json*> todo{&Member(document_, component)};
    while (!todo.empty()) {
      const Json& item = *todo.back();
      todo.pop_back();
      if (item.is_null()) continue;
      if (!item.is_object()) return Malformed(std::string("'") + component + "' is not an object");
      if (Text(item, "type") != "Sequence") {
        out->push_back(&item);
        continue;
      }
      const Json& list = Member(item, list_name);
      if (!list.is_array()) return Malformed(std::string("a Sequence in '") + component + "' has no list");
      for (auto step = list.rbegin(); step != list.rend(); ++step) todo.push_back(&*step);
    }
    constexpr size_t kMaxSteps = 16;
    if (out->size() > kMaxSteps) return Unsupported(std::string("a '") + component + "' of more than 16 steps");
    return {};
  }

  Status AddSplit(const Json& step, PreTokenizer* pre) const {
    const std::string name = Text(step, "behavior");
    SplitBehavior behavior = SplitBehavior::kIsolated;
    if (name == "Removed") {
      behavior = SplitBehavior::kRemoved;
    } else if (name == "MergedWithPrevious") {
      behavior = SplitBehavior::kMergedWithPrevious;
    } else if (name == "MergedWithNext") {
      behavior = SplitBehavior::kMergedWithNext;
    } else if (name == "Contiguous") {
      behavior = SplitBehavior::kContiguous;
    } else if (name != "Isolated") {
      return Unsupported("the Split behavior '" + name + "'");
    }
    PITH_ASSIGN(const bool invert, Flag(step, "invert"));
    const Json& pattern = Member(step, "pattern");
    const bool is_regex = Member(pattern, "Regex").is_string();
    if (!is_regex && !Member(pattern, "String").is_string()) return Malformed("a Split has no pattern");
    auto regex =
        is_regex ? SplitRegex::Compile(Text(pattern, "Regex")) : SplitRegex::CompileLiteral(Text(pattern, "String"));
    if (!regex.ok()) return regex.error().Wrap(what_);
    pre->AddSplit(std::move(regex).value(), behavior, invert);
    return {};
  }

  const std::string& what_;
  const Json& document_;
};

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::FromJson(std::string_view json, const std::string& what) {
  TokenizerHandler handler(what);
  bool parsed = false;
  try {
    parsed = Json::sax_parse(json.begin(), json.end(), &handler);
  } catch (const Json::exception& exception) {
    return Error{ErrorCode::kMalformed, what + ": " + exception.what()};
  }
  if (!parsed || !handler.status().ok()) {
    if (!handler.status().ok()) return handler.status().error();
    return Error{ErrorCode::kMalformed, what + ": not valid JSON"};
  }
  const ComponentReader reader(what, handler.document());
  if (!handler.document().is_object()) return reader.Malformed("the document is not an object");

  TokenizerParts parts;
  bool ignore_merges = false;
  bool has_unk = false;
  PITH_RETURN_IF_ERROR(reader.ReadModel(&ignore_merges, &has_unk));
  if (!handler.has_vocab() || !handler.has_merges()) return reader.Malformed("'model' has no 'vocab' or no 'merges'");
  PITH_RETURN_IF_ERROR(reader.ReadNormalizer(&parts.nfc));
  PITH_RETURN_IF_ERROR(reader.ReadPreTokenizer(&parts.pre_tokenizer));
  PITH_RETURN_IF_ERROR(reader.ReadPostProcessor(&parts.bos_id));
  PITH_RETURN_IF_ERROR(reader.CheckDecoder());
  PITH_RETURN_IF_ERROR(reader.ReadAddedTokens(&parts.added));
  PITH_ASSIGN(BpeModel model, std::move(handler.builder()).Build(ignore_merges));
  if (has_unk && !model.CoversAllBytes()) {
    return reader.Unsupported("'model.unk_token' with a vocabulary that lacks some of the 256 bytes");
  }
  return BpeTokenizer::Make(std::move(model), std::move(parts), what);
}

}  // namespace pith
