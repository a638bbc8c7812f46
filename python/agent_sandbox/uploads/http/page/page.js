// One file, one code, one answer. The code leaves this page only as the Authorization header.
(() => {
  const $ = (id) => document.getElementById(id);
  let lang = (navigator.language || "en").toLowerCase().startsWith("zh") ? "zh" : "en";
  let chosen = null;
  let busy = false;
  const shown = { code: null, file: null, answer: null }; // what to say again in another language

  const say = () => TEXTS[lang];

  function translate() {
    document.documentElement.lang = lang === "zh" ? "zh-Hans" : "en";
    document.title = say().title;
    for (const node of document.querySelectorAll("[data-t]")) node.textContent = say()[node.dataset.t];
    $("language").textContent = say().other;
    $("language").lang = say().otherLang;
    nameFile();
    for (const field of ["code", "file"]) complain(field, shown[field]);
    if (shown.answer) shown.answer();
  }

  // What turns the direction of text around would show another ending than the name has.
  const plain = (name) => name.replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");

  function nameFile() {
    const line = $("file-name");
    line.replaceChildren();
    if (!chosen) {
      line.append(say().none);
      return;
    }
    const name = document.createElement("bdi"); // a name may hold right-to-left marks
    name.textContent = plain(chosen.name);
    line.append(name, ` (${say().bytes(chosen.size)})`);
  }

  // A browser says nothing when the same name is chosen again, be it another file by now.
  function forgetChoice() {
    $("file").value = "";
  }

  function complain(field, key) {
    shown[field] = key;
    $(`${field}-error`).hidden = !key;
    $(`${field}-error`).textContent = key ? say()[key] : "";
    $(field).setAttribute("aria-invalid", key ? "true" : "false");
  }

  function choose(files, folder = false) {
    if (files.length > 1 || folder) {
      chosen = null;
      complain("file", "fileMany");
    } else if (files.length === 1) {
      chosen = files[0];
      complain("file", null);
    }
    nameFile();
  }

  function readCode() {
    // Chats and documents put quotes, a full stop or characters that nobody sees around a code.
    const code = $("code").value.replace(/[\u200b-\u200f\u2060\ufeff]/g, "")
      .replace(/^.*authorization\s*:/i, "").replace(/^[^\w-]+|[^\w-]+$/g, "");
    if (!code) complain("code", "codeMissing");
    else if (!/^[\x21-\x7e]+( [\x21-\x7e]+)?$/.test(code) || code.length > 512) complain("code", "codeShape");
    else {
      complain("code", null);
      return code;
    }
    return null;
  }

  function show(part) {
    for (const id of ["form", "sending", "answer"]) $(id).hidden = id !== part;
  }

  function answer(title, again, text, facts) {
    busy = false;
    show("answer");
    $("form").hidden = !again;
    if (!again) $("code").value = "";
    forgetChoice();
    $("answer").className = title === "doneTitle" ? "good" : "bad";
    $("facts").hidden = !facts;
    shown.answer = () => {
      $("answer-title").textContent = say()[title];
      $("answer-text").textContent = text();
      if (facts) facts();
    };
    shown.answer();
    $("answer-title").focus();
  }

  function refused(status, body) {
    // Refused before anything was used up: without a session, or with one that is still pending.
    const again = status === 401 || status === 404 || body.code === "E7019" || body.state === "pending";
    // The server says that it does not know, or something between us and it has answered.
    const lost = status === 0 || (status >= 500 && !body.code);
    const unknown = !again && (lost || body.code === "E7000" || body.code === "E7011");
    answer("failTitle", again, () => {
      const words = say().answers[unknown ? 0 : status] || say().answers.other;
      return unknown || status === 409 ? words : `${words} ${again ? say().retry : say().renew}`;
    });
  }

  function arrived(body, file, local) {
    const check = local === null ? "checkNone" : local === body.sha256 ? "checkGood" : "checkBad";
    const [title, text] = check === "checkBad" ? ["oddTitle", "oddText"] : ["doneTitle", "doneText"];
    answer(title, false, () => say()[text], () => {
      $("fact-name").textContent = plain(file.name);
      $("fact-size").textContent = say().bytes(body.size_bytes);
      $("fact-digest").textContent = body.sha256;
      $("fact-check").textContent = say()[check];
    });
  }

  function progress(done, total) {
    const percent = total ? Math.floor((done / total) * 100) : 100;
    $("bar").value = total ? Math.floor((done / total) * 1000) : 1000;
    $("amount").textContent = done < total ? say().amount(say().bytes(done), say().bytes(total)) : say().waiting;
    const step = percent - (percent % 25); // a screen reader hears every quarter, not every byte
    if (step && $("live").dataset.step !== String(step)) {
      $("live").dataset.step = String(step);
      $("live").textContent = say().percent(step);
    }
  }

  // A folder, and a file that was moved or changed since it was chosen, would use the code up.
  async function sendIfReadable(code, file) {
    busy = true;
    try {
      await file.slice(0, 1).arrayBuffer();
    } catch {
      busy = false;
      chosen = null;
      forgetChoice();
      nameFile();
      complain("file", "fileUnreadable");
      $("file").focus();
      return;
    }
    send(code, file);
  }

  function send(code, file) {
    const local = digestOf(file).catch(() => null);
    const request = new XMLHttpRequest(); // fetch() reports no upload progress
    request.open("PUT", location.pathname);
    request.setRequestHeader("Authorization", code);
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.onprogress = (event) => progress(event.loaded, file.size);
    request.onload = async () => {
      let body = {};
      try { body = JSON.parse(request.responseText); } catch { /* a proxy's answer */ }
      if (request.status === 200 && body.state === "stored") arrived(body, file, await local);
      else refused(request.status === 200 ? 0 : request.status, body);
    };
    request.onerror = request.onabort = request.ontimeout = () => refused(0, {});
    $("live").dataset.step = "";
    show("sending");
    $("sending-name").textContent = plain(file.name);
    $("sending-title").focus();
    progress(0, file.size || 1);
    request.send(file);
  }

  $("form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (busy) return;
    const code = readCode();
    if (!chosen) complain("file", "fileMissing");
    if (!code) $("code").focus();
    else if (!chosen) $("file").focus();
    else sendIfReadable(code, chosen);
  });
  $("file").addEventListener("click", forgetChoice);
  $("file").addEventListener("change", () => choose($("file").files));
  $("language").addEventListener("click", () => {
    lang = lang === "en" ? "zh" : "en";
    translate();
  });
  for (const kind of ["dragenter", "dragover"]) {
    $("drop").addEventListener(kind, () => $("drop").classList.add("over"));
  }
  for (const kind of ["dragleave", "drop"]) {
    $("drop").addEventListener(kind, () => $("drop").classList.remove("over"));
  }
  $("drop").addEventListener("drop", (event) => {
    event.preventDefault();
    const folder = [...event.dataTransfer.items].some((item) => item.webkitGetAsEntry()?.isDirectory);
    choose(event.dataTransfer.files, folder);
  });
  // A file dropped beside the field must not replace the page.
  for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => event.preventDefault());
  addEventListener("beforeunload", (event) => { if (busy) event.preventDefault(); });

  $("plain").hidden = true; // no <noscript>: scripts may also be blocked
  $("language").hidden = false;
  translate();
  show("form");
})();
