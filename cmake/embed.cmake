# A file as a C++ source: cmake -DINPUT=file -DOUTPUT=out.cc -DFUNCTION=Name -P embed.cmake writes
# std::string_view pith::Name() that returns the bytes of the file.
file(READ "${INPUT}" hex HEX)
string(REGEX REPLACE "(................................................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
get_filename_component(name "${INPUT}" NAME)
file(WRITE "${OUTPUT}" "// ${name}, embedded.
#include <string_view>

namespace pith {
namespace {
constexpr unsigned char kBytes[] = {
${bytes}
};
}  // namespace
std::string_view ${FUNCTION}();
std::string_view ${FUNCTION}() { return {reinterpret_cast<const char*>(kBytes), sizeof(kBytes)}; }
}  // namespace pith
")
