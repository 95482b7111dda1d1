const SECRET_FIELD =
  /("(?:[a-z_]*(?:secret|password|token)|value|api_key|key|authorization)"\s*:\s*)"(?:[^"\\]|\\.)*"/gi
const SECRET_FORM = /\b((?:refresh_token|code|code_verifier|device_code|token|password)=)[^&]*/g

/** Replaces secrets of a text. */
function mask(text: string, secrets: readonly string[]): string {
  let masked = text.replace(SECRET_FIELD, '$1"***"')
  for (const secret of secrets)
    if (secret !== '') masked = masked.replaceAll(JSON.stringify(secret).slice(1, -1), '***')
  return masked
}

const bodyText = (body: RequestInit['body']): string =>
  typeof body === 'string'
    ? body
    : body instanceof URLSearchParams
      ? String(body).replace(SECRET_FORM, '$1***')
      : body
        ? '(a file)'
        : ''

/** Returns a request for `--debug`, with its secrets replaced. */
export function requestText(url: string, init: RequestInit, secrets: readonly string[]): string {
  const headers = [...new Headers(init.headers)].map(([name, value]) =>
    name === 'authorization' ? `> ${name}: ***` : `> ${name}: ${value}`,
  )
  const body = mask(bodyText(init.body), secrets)
  return [`> ${init.method ?? 'GET'} ${url}`, ...headers, ...(body ? [`> ${body}`] : [])].join('\n')
}

/** Returns an answer for `--debug`, with its secrets replaced; a body that is not JSON is left out. */
export function answerText({ status, headers }: Response, body: string | null, secrets: readonly string[]): string {
  const lines = [...headers].map(([name, value]) => `< ${name}: ${value}`)
  return [`< ${status}`, ...lines, ...(body === null ? [] : [`< ${mask(body, secrets)}`])].join('\n')
}

const quoted = (text: string): string => `'${text.replaceAll("'", `'\\''`)}'`

/** Returns a request as a curl command. */
export function curlOf(
  url: string,
  { method = 'GET', headers, body }: RequestInit,
  secrets: readonly string[],
): string {
  const parts = [`curl -X ${method} ${quoted(url)}`, `-H "Authorization: Bearer $MUSTER_TOKEN"`]
  for (const [name, value] of new Headers(headers))
    if (!['authorization', 'accept', 'x-muster-client'].includes(name)) parts.push(`-H ${quoted(`${name}: ${value}`)}`)
  if (typeof body === 'string') parts.push(`--data-raw ${quoted(mask(body, secrets))}`)
  else if (body instanceof FormData)
    for (const [name, value] of body)
      parts.push(`-F ${quoted(typeof value === 'string' ? `${name}=${value}` : `${name}=@${value.name}`)}`)
  else if (body) parts.push('--data-binary @-')
  return parts.join(' \\\n  ')
}
