/** Writes a request as Python with the standard library. */

const WIDTH = 100

/** Returns a JSON value as Python, over several lines if it is long. */
function literal(value: unknown, indent: string): string {
  if (value === null) return 'None'
  if (typeof value === 'boolean') return value ? 'True' : 'False'
  if (typeof value === 'string')
    return `'${JSON.stringify(value).slice(1, -1).replaceAll('\\"', '"').replaceAll("'", "\\'")}'`
  if (typeof value !== 'object') return JSON.stringify(value)
  const inner = `${indent}    `
  const items = Array.isArray(value)
    ? value.map(each => literal(each, inner))
    : Object.entries(value).map(([key, each]) => `${literal(key, inner)}: ${literal(each, inner)}`)
  const [open, close] = Array.isArray(value) ? '[]' : '{}'
  const line = `${open}${items.join(', ')}${close}`
  if (line.length + indent.length <= WIDTH && !line.includes('\n')) return line
  return `${open}\n${items.map(each => `${inner}${each},\n`).join('')}${indent}${close}`
}

export type PythonRequest = {
  method: string
  url: string
  isPublic: boolean
  /** JSON of the body, or the file whose bytes are the body, with its type. */
  body?: { json: unknown } | { file: string; type: string }
  answer: 'json' | 'nothing' | 'file' | 'stream'
}

const USES: Record<PythonRequest['answer'], readonly string[]> = {
  json: ['    print(json.load(response))'],
  nothing: ['    print(response.status)'],
  file: ["    open('answer', 'wb').write(response.read())"],
  stream: ['    for line in response:', "        print(line.decode(), end='')"],
}

export function pythonOf({ method, url, isPublic, body, answer }: PythonRequest): string {
  const headers = [
    ...(isPublic ? [] : ["'Authorization': 'Bearer ' + os.environ['MUSTER_TOKEN']"]),
    ...(body ? [`'Content-Type': '${'json' in body ? 'application/json' : body.type}'`] : []),
  ]
  const data =
    body &&
    ('json' in body ? `json.dumps(${literal(body.json, '    ')}).encode()` : `open('${body.file}', 'rb').read()`)
  const modules = [
    ...(answer === 'json' || (body && 'json' in body) ? ['json'] : []),
    ...(isPublic ? [] : ['os']),
    'urllib.request',
  ]
  return [
    `import ${modules.join(', ')}`,
    '',
    'request = urllib.request.Request(',
    `    '${url}',`,
    `    method='${method}',`,
    ...(headers.length > 0 ? [`    headers={${headers.join(', ')}},`] : []),
    ...(data ? [`    data=${data},`] : []),
    ')',
    'with urllib.request.urlopen(request) as response:',
    ...USES[answer],
  ].join('\n')
}
