// Starts the interactive reference: no fonts, proxy, telemetry or assistant of other origins, and no storage.
const element = document.getElementById('reference')
globalThis.Scalar.createApiReference(element, {
  url: element.dataset.document,
  servers: [{ url: new URL('..', new URL('./', document.baseURI)).href.replace(/\/$/, '') }],
  withDefaultFonts: false,
  telemetry: false,
  agent: { disabled: true },
  mcp: { disabled: true },
  hideClientButton: true,
  // The document has an example for each client there is.
  hiddenClients: true,
  showDeveloperTools: 'never',
  persistAuth: false,
})
