/** Writes a call as Python with its client. */

const WIDTH = 100

const KEYWORDS = new Set(
  `False None True and as assert async await break class continue def del elif else except finally for from global if
  import in is lambda nonlocal not or pass raise return try while with yield`.split(/\s+/),
)

/** Returns a name as the client has it: reserved words have an underscore after them. */
const identifier = (name: string): string => {
  const word = name.replaceAll('-', '_')
  return KEYWORDS.has(word) ? `${word}_` : word
}

/** Joins items between brackets, over several lines if they are long. */
function enclose(open: string, items: readonly string[], close: string, indent: string): string {
  const line = `${open}${items.join(', ')}${close}`
  if (line.length + indent.length <= WIDTH && !line.includes('\n')) return line
  return `${open}\n${items.map(each => `${indent}    ${each},\n`).join('')}${indent}${close}`
}

/** Returns a JSON value as Python. */
function literal(value: unknown, indent: string): string {
  if (value === null) return 'None'
  if (typeof value === 'boolean') return value ? 'True' : 'False'
  if (typeof value !== 'object') return JSON.stringify(value)
  const inner = `${indent}    `
  if (Array.isArray(value))
    return enclose(
      '[',
      value.map(each => literal(each, inner)),
      ']',
      indent,
    )
  const items = Object.entries(value).map(([key, each]) => `${literal(key, inner)}: ${literal(each, inner)}`)
  return enclose('{', items, '}', indent)
}

/** A call of a method of the client. */
export type PythonCall = {
  words: readonly string[]
  /** Arguments of the path in its order. */
  path: readonly unknown[]
  /** Other arguments by name. */
  named: Readonly<Record<string, unknown>>
  /** Name of the file that the call sends. */
  file?: string
  answer: 'record' | 'nothing' | 'list' | 'stream' | 'download'
}

/** What the example has before and after the call. */
const USES: Record<PythonCall['answer'], readonly [before: string, after: string, line?: string]> = {
  record: ['answer = ', ''],
  nothing: ['', ''],
  list: ['for item in ', ':', 'print(item)'],
  stream: ['for event in ', ':', 'print(event)'],
  download: ['answer = ', '.read()'],
}

/** Returns a call as Python, with the client in the variable `muster`. */
export function pythonOf({ words, path, named, file, answer }: PythonCall): string {
  const indent = file === undefined ? '' : '    '
  const inner = `${indent}    `
  const args = [
    ...path.map(value => literal(value, inner)),
    ...(file === undefined ? [] : ['file=file']),
    ...Object.entries(named).map(([name, value]) => `${identifier(name)}=${literal(value, inner)}`),
  ]
  const [before, after, line] = USES[answer]
  const call = enclose(`${before}muster.${words.map(identifier).join('.')}(`, args, ')', indent)
  return [
    ...(file === undefined ? [] : [`with open("${file}", "rb") as file:`]),
    `${indent}${call}${after}`,
    ...(line === undefined ? [] : [`${inner}${line}`]),
  ].join('\n')
}
