#include "model/tokenizer.h"

namespace pith {

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  for (const int32_t id : ids) {
    if (!(skip_special && IsSpecial(id))) text += TokenBytes(id);
  }
  return text;
}

}  // namespace pith
