// The link that wink prints has the token after #, which browsers do not send: put it in the form.
"use strict";

const token = decodeURIComponent(location.hash.slice(1));
if (token) {
  history.replaceState(null, "", location.pathname);
  document.getElementById("token").value = token;
  document.getElementById("login").submit();
}
