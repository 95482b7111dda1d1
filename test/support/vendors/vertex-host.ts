/**
 * Loaded into a process before its program: requests to Vertex AI, whose host is not configurable, reach the simulator at
 * VERTEX_SIMULATOR_URL.
 */
const real = globalThis.fetch
const simulator = process.env.VERTEX_SIMULATOR_URL

globalThis.fetch = (input, init) => {
  const address = input instanceof Request ? input.url : String(input)
  const isVertex = /^https:\/\/([a-z0-9-]+-)?aiplatform\.googleapis\.com\//.test(address)
  if (!simulator || !isVertex) return real(input, init)
  const { pathname, search } = new URL(address)
  return real(`${simulator}${pathname}${search}`, init)
}
