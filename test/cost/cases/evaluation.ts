import { Readable } from 'node:stream'
import { setImmediate } from 'node:timers/promises'
import { eventLoopYielder } from '#core/base/event-loop.ts'
import { parseRows, readLines } from '#evaluation/datasets/item-files.ts'
import { computeBriefScores, parseEmbeddedObject, requireScore } from '#evaluation/eval-runs/score.ts'
import { nested, repeated, repetitions } from '../inputs.ts'
import { costCase } from '../measure.ts'

const FILE = { limit: 64 * 1024, bound: 'bytes of a file, read in pieces of 64 KiB' }
const REPLY = { limit: 1024 * 1024, bound: 'bytes of a reply of a model' }

const HEADER = 'input,expected_output\n'

const attempt = (run: () => unknown): void => {
  try {
    run()
  } catch {
    // Refused.
  }
}

/** Reads as from a file: each piece in a separate turn. */
const piecesOf = (text: string): Readable =>
  Readable.from(
    (async function* () {
      const bytes = Buffer.from(text)
      for (let at = 0; at < bytes.length; at += 65_536) {
        yield bytes.subarray(at, at + 65_536)
        await setImmediate()
      }
    })(),
  )

/** Yields after each row, as its reader does. */
async function readAll(rows: AsyncIterable<unknown>): Promise<void> {
  const yieldToEventLoop = eventLoopYielder()
  try {
    for await (const _row of rows) await yieldToEventLoop()
  } catch {
    // Refused.
  }
}

export default [
  costCase({
    name: 'evaluation/datasets/item-files.ts readLines',
    ...FILE,
    inputs: { lines: repeated('{"input":1}\n'), 'empty lines': repeated('\n'), 'one line': repeated('a') },
    run: text => readAll(readLines(piecesOf(text), 4 * 1024 * 1024)),
  }),
  costCase({
    name: 'evaluation/datasets/item-files.ts parseRows of jsonl',
    ...FILE,
    inputs: { lines: repeated('{"input":"x"}\n'), 'empty lines': repeated('\n'), nested: nested('[', ']') },
    run: text => readAll(parseRows(piecesOf(text), 'jsonl')),
  }),
  costCase({
    name: 'evaluation/datasets/item-files.ts parseRows of csv',
    ...FILE,
    inputs: {
      rows: repeated('x,y\n', { before: HEADER }),
      'empty lines': repeated('\n', { before: HEADER }),
      quotes: repeated('""', { before: `${HEADER}"` }),
      'line breaks in a cell': repeated('\r\n', { before: `${HEADER}"`, after: '"' }),
      cells: repeated(',', { before: HEADER }),
    },
    run: text => readAll(parseRows(piecesOf(text), 'csv')),
  }),
  costCase({
    name: 'evaluation/eval-runs/score.ts parseEmbeddedObject',
    ...REPLY,
    inputs: repetitions(['{', '}', '"', 'a', '{}']),
    run: text => attempt(() => parseEmbeddedObject(text)),
  }),
  costCase({
    name: 'evaluation/eval-runs/score.ts requireScore',
    ...REPLY,
    inputs: { text: repeated('a') },
    run: value => attempt(() => requireScore(value)),
  }),
  costCase({
    name: 'evaluation/eval-runs/score.ts computeBriefScores',
    ...REPLY,
    inputs: { 'near matches': repeated('aaaaaaab'), 'one letter': repeated('a'), blanks: repeated(' ') },
    run: output => {
      const scorers = [
        { type: 'exact_match', threshold: 1 },
        { type: 'contains', value: `${'a'.repeat(4000)}b`, case_sensitive: false },
      ]
      return computeBriefScores({ output, expected_output: output, input: [], run: { scorers } } as never)
    },
  }),
]
