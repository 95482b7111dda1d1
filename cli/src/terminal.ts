import { once } from 'node:events'
import { Failure } from './failure.ts'

/** What the user chose for the output of this command. */
export type OutputSettings = {
  /** Whether tables and streamed text are printed, for people. */
  isHuman: boolean
  format: 'table' | 'json' | 'jsonl'
  field?: string
  columns?: string[]
  isUtc: boolean
  isQuiet: boolean
}

let isBroken = false

/** Ends the process once no program reads its output, as other programs do: `muster agents list | head -1`. */
export function exitOnClosedPipe(): void {
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EPIPE') throw error
    isBroken = true
    process.exit(0)
  })
}

/** Writes to stdout; waits while the reader is slow. */
export async function write(text: string | Uint8Array): Promise<void> {
  if (isBroken || text.length === 0) return
  if (!process.stdout.write(text)) await once(process.stdout, 'drain')
}

export const printLine = (text: string): Promise<void> => write(`${text}\n`)

/** Writes a line to stderr. */
export const note = (text: string): void => void process.stderr.write(`${text}\n`)

export const isTerminal = (): boolean => process.stdout.isTTY === true

/** Whether a user can answer questions. */
export const canAsk = (): boolean => process.stdin.isTTY === true && process.stderr.isTTY === true

const hex = (text: string, digits: number) => text.codePointAt(0)!.toString(16).padStart(digits, '0')

/** Shows control characters of text that others wrote as escapes; a terminal would execute them. */
export const visible = (text: string, keep: 'lines' | 'none' = 'none'): string =>
  text
    // biome-ignore lint/suspicious/noControlCharactersInRegex: these are the characters to replace
    .replace(/[\x00-\x1f\x7f-\x9f]/g, found =>
      keep === 'lines' && (found === '\n' || found === '\t') ? found : `\\x${hex(found, 2)}`,
    )
    .replace(/[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, found => `\\u${hex(found, 4)}`)

/** Prints a question on stderr and returns the answer, without showing it if it is secret. */
export async function ask(question: string, { isSecret = false } = {}): Promise<string> {
  const { createInterface } = await import('node:readline/promises')
  const { Writable } = await import('node:stream')
  process.stderr.write(question)
  const silent = new Writable({ write: (_chunk, _encoding, done) => done() })
  const reader = createInterface({ input: process.stdin, output: isSecret ? silent : process.stderr, terminal: true })
  // The question is written here, because a silent output would swallow it.
  const answer = await new Promise<string>((resolve, reject) => {
    reader.once('line', resolve)
    reader.once('SIGINT', () => reject(new Error('interrupted')))
    reader.once('close', () => resolve(''))
  }).finally(() => reader.close())
  if (isSecret) process.stderr.write('\n')
  return answer
}

/** Requests a confirmation. @throws Failure with the message for any answer but yes */
export async function requireYes(question: string, refusal = 'nothing was changed'): Promise<void> {
  const answer = await ask(`${question} [y/N] `)
  if (!/^y(es)?$/i.test(answer.trim())) throw new Failure(refusal)
}

let stdin: Promise<Buffer> | undefined

/** Reads all of stdin, once. */
export function readStdin(): Promise<Buffer> {
  stdin ??= (async () => {
    const chunks: Buffer[] = []
    for await (const chunk of process.stdin) chunks.push(chunk)
    return Buffer.concat(chunks)
  })()
  return stdin
}
