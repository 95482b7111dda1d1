import assert from 'node:assert/strict'
import fs from 'node:fs'
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js'
import { z } from 'zod'
import { operations } from '#core/api/operation.ts'
import { operationAt } from './declared-fields.ts'

/** One event of a stream as its reader sees it. */
export type Frame = { event: string; id?: string; data: any }

const checks = new Map<string, ValidateFunction[]>()
const received = new Set<string>()
const ajv = new Ajv2020({ strict: false, validateFormats: false })

/** The event in a block of lines of a stream; null for a comment. A block without the name of its event is a `message`. */
export function frameIn(block: string): Frame | null {
  const lines = block.split('\n').map(line => [line.slice(0, line.indexOf(': ')), line.slice(line.indexOf(': ') + 2)])
  const { event = 'message', id, data } = Object.fromEntries(lines)
  if (data === undefined) return null
  return { event, ...(id === undefined ? {} : { id }), data: data === '[DONE]' ? data : JSON.parse(data) }
}

/** The events of a stream that was read to its end, each of them checked. */
export function framesOf(method: string, path: string, text: string): Frame[] {
  const frames = text.split('\n\n').flatMap(block => frameIn(block) ?? [])
  for (const frame of frames) checkFrame(method, path, frame)
  return frames
}

/** Checks that an event of a stream is exactly one of those that its operation declares. */
export function checkFrame(method: string, path: string, frame: Frame): void {
  const operation = operationAt(method, path)
  assert.ok(operation?.stream, `${method} ${path} declares no stream`)
  const { name, events } = operation.stream
  const made =
    checks.get(name) ??
    events.map(event => ajv.compile(z.toJSONSchema(event, { io: 'output', unrepresentable: 'any' })))
  checks.set(name, made)
  const fitting = made.filter(check => check(frame))
  const errors = made.flatMap(check => check.errors ?? [])
  assert.equal(fitting.length, 1, `${name}: ${JSON.stringify(frame).slice(0, 500)} ${ajv.errorsText(errors)}`)
  note(`${name} ${frame.event}`)
}

/** Leaves the event in the file that TEST_FRAMES names, for the test command. */
function note(line: string): void {
  if (received.has(line)) return
  received.add(line)
  if (process.env.TEST_FRAMES) fs.appendFileSync(process.env.TEST_FRAMES, `${line}\n`)
}

/** The events of streams that operations declare and no test received, given the file in which tests left theirs. */
export function neverReceived(file: string): string[] {
  const lines = new Set(fs.existsSync(file) ? fs.readFileSync(file, 'utf8').split('\n') : [])
  const streams = operations.all().flatMap(({ stream }) => stream ?? [])
  const declared = streams.flatMap(({ name, events }) => events.map(({ shape }) => `${name} ${shape.event.value}`))
  return [...new Set(declared)].filter(line => !lines.has(line))
}
