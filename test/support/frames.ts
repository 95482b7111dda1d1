import assert from 'node:assert/strict'
import { Ajv2020, type ValidateFunction } from 'ajv/dist/2020.js'
import { z } from 'zod'
import { operations } from '../../src/core/api/operation.ts'

type Frame = { event: string; id?: string; data: unknown }

const checks = new Map<string, ValidateFunction[]>()
const ajv = new Ajv2020({ strict: false, validateFormats: false })

/** Whether a path is one of an operation's. */
const leadsTo = (template: string, path: string): boolean =>
  new RegExp(`^${template.replace(/\{\w+\}/g, '[^/]+')}$`).test(path.split('?')[0])

/** Checks that an event of a stream is exactly one of those that its operation declares. */
export function checkFrame(method: string, path: string, frame: Frame): void {
  const operation = operations.all().find(each => each.stream && each.method === method && leadsTo(each.path, path))
  assert.ok(operation?.stream, `${method} ${path} declares no stream`)
  const { name, events } = operation.stream
  const made =
    checks.get(name) ??
    events.map(event => ajv.compile(z.toJSONSchema(event, { io: 'output', unrepresentable: 'any' })))
  checks.set(name, made)
  const fitting = made.filter(check => check(frame))
  const errors = made.flatMap(check => check.errors ?? [])
  assert.equal(fitting.length, 1, `${name}: ${JSON.stringify(frame).slice(0, 500)} ${ajv.errorsText(errors)}`)
}
