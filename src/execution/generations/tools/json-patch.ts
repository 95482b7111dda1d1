import { isDeepStrictEqual } from 'node:util'
import { raiseInvalid } from '../../../core/api/errors.ts'

/** An operation of a JSON Patch (RFC 6902). */
export type PatchOperation = { op: string; path: string; from?: string; value?: unknown }

const pointer = {
  type: 'string',
  description: 'JSON Pointer (RFC 6901), such as `/items/0`; empty for the whole state',
}

export const JSON_PATCH_SCHEMA = {
  type: 'array',
  minItems: 1,
  maxItems: 200,
  description: 'Operations in order',
  items: {
    type: 'object',
    properties: {
      op: { type: 'string', enum: ['add', 'remove', 'replace', 'move', 'copy', 'test'] },
      path: pointer,
      from: { ...pointer, description: 'Source of `move` and `copy`' },
      value: { description: 'Value of `add`, `replace` and `test`' },
    },
    required: ['op', 'path'],
    additionalProperties: false,
  },
}

const refuse = (path: string, message: string): never => raiseInvalid({ code: 'INVALID_VALUE', path, message })

/**
 * Returns a document with the operations applied; the given one is unchanged.
 * @throws VALIDATION_FAILED for an operation that does not apply
 */
export function applyPatch(document: unknown, operations: readonly PatchOperation[]): unknown {
  let current = structuredClone(document)
  for (const [index, operation] of operations.entries()) current = apply(current, operation, `patch[${index}]`)
  return current
}

function apply(document: unknown, { op, path, from, value }: PatchOperation, at: string): unknown {
  const target = parsePointer(path, `${at}.path`)
  if ((op === 'add' || op === 'replace' || op === 'test') && value === undefined) refuse(`${at}.value`, 'is required')
  if (op === 'add') return add(document, target, structuredClone(value), at)
  if (op === 'remove') return remove(document, target, at)
  if (op === 'replace') return add(remove(document, target, at), target, structuredClone(value), at)
  if (op === 'test')
    return isDeepStrictEqual(read(document, target, at), value) ? document : refuse(at, 'the test failed')
  const source = parsePointer(from ?? refuse(`${at}.from`, 'is required'), `${at}.from`)
  const moved = structuredClone(read(document, source, at))
  if (op === 'copy') return add(document, target, moved, at)
  if (op !== 'move') return refuse(`${at}.op`, 'is not an operation')
  if (path.startsWith(`${from}/`)) return refuse(`${at}.from`, 'must not contain path')
  return add(remove(document, source, at), target, moved, at)
}

function parsePointer(text: string, at: string): string[] {
  if (text === '') return []
  if (!text.startsWith('/')) refuse(at, 'must be a JSON Pointer')
  return text
    .slice(1)
    .split('/')
    .map(token => token.replaceAll('~1', '/').replaceAll('~0', '~'))
}

type Container = unknown[] | Record<string, unknown>

/** Returns the object or array at a path. */
function containerAt(document: unknown, path: readonly string[], at: string): Container {
  const found = read(document, path, at)
  return typeof found === 'object' && found !== null ? (found as Container) : refuse(at, 'the path does not exist')
}

const INDEX = /^(0|[1-9]\d{0,8})$/

function indexIn(list: readonly unknown[], token: string, last: number, at: string): number {
  const index = INDEX.test(token) ? Number(token) : -1
  return index >= 0 && index <= last ? index : refuse(at, `the list of ${list.length} items has no index ${token}`)
}

function read(document: unknown, path: readonly string[], at: string): unknown {
  let current = document
  for (const token of path) {
    if (Array.isArray(current)) current = current[indexIn(current, token, current.length - 1, at)]
    else if (typeof current === 'object' && current !== null && Object.hasOwn(current, token))
      current = (current as Record<string, unknown>)[token]
    else refuse(at, 'the path does not exist')
  }
  return current
}

function add(document: unknown, path: readonly string[], value: unknown, at: string): unknown {
  const token = path.at(-1)
  if (token === undefined) return value
  const container = containerAt(document, path.slice(0, -1), at)
  if (Array.isArray(container))
    container.splice(token === '-' ? container.length : indexIn(container, token, container.length, at), 0, value)
  // Assignment would set the prototype for the key `__proto__`.
  else Object.defineProperty(container, token, { value, enumerable: true, configurable: true, writable: true })
  return document
}

function remove(document: unknown, path: readonly string[], at: string): unknown {
  read(document, path, at)
  const token = path.at(-1)
  if (token === undefined) return null
  const container = containerAt(document, path.slice(0, -1), at)
  if (Array.isArray(container)) container.splice(indexIn(container, token, container.length - 1, at), 1)
  else delete container[token]
  return document
}
