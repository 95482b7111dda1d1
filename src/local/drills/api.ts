/** The status and the parsed body of an answer. */
export type Reply = { status: number; body: any }

export type Credential = { url: string; token: string | null }

const TIMEOUT_MS = 120_000

/**
 * Sends one request to the API.
 * @throws for a request without an answer; `codeOf` has its code
 */
export async function request(
  { url, token }: Credential,
  method: string,
  path: string,
  body?: object,
  headers: Record<string, string> = {},
): Promise<Reply> {
  const response = await fetch(`${url}/api/v1${path}`, {
    method,
    headers: {
      ...(token && { authorization: `Bearer ${token}` }),
      ...(body && { 'content-type': 'application/json' }),
      ...headers,
    },
    body: body && JSON.stringify(body),
    signal: AbortSignal.timeout(TIMEOUT_MS),
  })
  const text = await response.text()
  const isJson = response.headers.get('content-type')?.includes('json')
  return { status: response.status, body: text && isJson ? JSON.parse(text) : text }
}

/** The code of a failed request: of the API, of the connection, or the name of the error. */
export function codeOf(failure: unknown): string {
  if (!(failure instanceof Error)) return (failure as Reply).body?.error?.code ?? `HTTP_${(failure as Reply).status}`
  const { cause, name } = failure as Error & { cause?: { code?: string } }
  return cause?.code ?? name
}

/**
 * Sends a request that must succeed and returns the body of the answer.
 * @throws Error with the answer
 */
export async function must(credential: Credential, method: string, path: string, body?: object): Promise<any> {
  const reply = await request(credential, method, path, body)
  if (reply.status >= 300) throw new Error(`${method} ${path}: ${reply.status} ${JSON.stringify(reply.body)}`)
  return reply.body
}

const PAGE = 100

/** A list with all of its pages, and the total that it reports. */
export type Listed = { rows: any[]; total: number }

/** Reads all pages of a list. Rows that are created meanwhile may be missing. */
export async function readAll(credential: Credential, path: string): Promise<Listed> {
  const rows: any[] = []
  for (;;) {
    const separator = path.includes('?') ? '&' : '?'
    const page = await must(credential, 'GET', `${path}${separator}limit=${PAGE}&offset=${rows.length}`)
    rows.push(...page.data)
    if (page.data.length < PAGE) return { rows, total: page.total }
  }
}
