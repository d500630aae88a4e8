// The documentation of the admin API, at /docs: Swagger UI, built into the same files as the dashboard, so that it works
// without any other host.
import SwaggerUI from "swagger-ui-dist/swagger-ui-es-bundle.js";
import "swagger-ui-dist/swagger-ui.css";

SwaggerUI({
  dom_id: "#docs",
  // Relative to the page's <base>: it works wherever a reverse proxy puts it.
  url: new URL("openapi.json", document.baseURI).href,
  deepLinking: true,
  persistAuthorization: false,
  // Else it asks a server of its makers what it thinks of the document.
  validatorUrl: null,
});
