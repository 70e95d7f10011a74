#include "eval/html_page.h"

namespace pith {

std::string ScriptSafeJson(std::string_view json) {
  std::string safe;
  safe.reserve(json.size());
  for (size_t i = 0; i < json.size(); ++i) {
    // "<" occurs inside strings only, where \u003c means the same; U+2028 and U+2029 likewise.
    if (json[i] == '<') {
      safe += "\\u003c";
    } else if (json.substr(i, 3) == "\xE2\x80\xA8" || json.substr(i, 3) == "\xE2\x80\xA9") {
      safe += json[i + 2] == '\xA8' ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      safe += json[i];
    }
  }
  return safe;
}

std::string HtmlText(std::string_view text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '&': html += "&amp;"; break;
      case '<': html += "&lt;"; break;
      case '>': html += "&gt;"; break;
      case '"': html += "&quot;"; break;
      case '\'': html += "&#39;"; break;
      default: html += c;
    }
  }
  return html;
}

std::string HtmlPage(std::string_view title, std::string_view without_script, std::string_view json,
                     std::string_view script) {
  std::string html = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  html +=
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'; img-src data:\">\n";
  html += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  const std::string safe_title = HtmlText(title);
  html += "<title>" + safe_title + "</title>\n<style>\n";
  html += ReportStyle();
  html += "</style>\n</head>\n<body>\n<h1>" + safe_title + "</h1>\n";
  html += "<noscript>" + HtmlText(without_script) + "</noscript>\n";
  html += "<main id=\"report\"></main>\n<script>\n";
  html += ReportChartLibrary();
  html += "\n</script>\n<script type=\"application/json\" id=\"data\">\n";
  html += ScriptSafeJson(json);
  html += "\n</script>\n<script>\n";
  html += script;
  html += "</script>\n</body>\n</html>\n";
  return html;
}

}  // namespace pith
