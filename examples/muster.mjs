const { MUSTER_URL = 'http://localhost:5047', MUSTER_KEY } = process.env

/** Sends a request and returns the response. Throws an error with the code, message and hint of an error response. */
export async function send(method, path, body) {
  const response = await fetch(`${MUSTER_URL}/api/v1${path}`, {
    method,
    headers: {
      authorization: `Bearer ${MUSTER_KEY}`,
      ...(body === undefined || body instanceof FormData ? {} : { 'content-type': 'application/json' }),
    },
    body: body === undefined || body instanceof FormData ? body : JSON.stringify(body),
  })
  if (!response.ok) {
    const { error } = await response.json()
    throw new Error(`${method} ${path}: ${response.status} ${error.code}: ${error.message} (${error.hint})`)
  }
  return response
}

export const get = async path => (await send('GET', path)).json()
export const post = async (path, body) => (await send('POST', path, body)).json()
