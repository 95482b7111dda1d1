import { isDeepStrictEqual } from 'node:util'
import { storabilityProblem } from '#core/api/validate.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import { isObject, parseExactJson } from '#core/base/exact-json.ts'

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

/** Most levels of the path of an added value. */
const MAX_PATH = 64

/** Limits of a patch in characters of JSON: the document after each operation, and all values copied and measured. */
type PatchLimits = { size: number; work: number }

/**
 * Returns a document with the operations applied; the given one is unchanged.
 * @throws VALIDATION_FAILED for an operation that does not apply or exceeds a limit
 */
export function applyPatch(document: unknown, operations: readonly PatchOperation[], limits: PatchLimits): unknown {
  const patch = new Patch(textOf(document), limits)
  for (const [index, operation] of operations.entries()) patch.apply(operation, `patch[${index}]`)
  const problem = storabilityProblem(patch.document)
  return problem ? raiseInvalid(problem) : patch.document
}

/** A document in the course of a patch. Its size is counted before a value is copied, so that `copy` cannot double it. */
class Patch {
  document: unknown
  readonly #limits: PatchLimits
  #size: number
  #work = 0

  /** @param text the document as JSON */
  constructor(text: string, limits: PatchLimits) {
    this.document = parseExactJson(text)
    this.#limits = limits
    this.#size = text.length
  }

  apply({ op, path, from, value }: PatchOperation, at: string): void {
    const target = parsePointer(path, `${at}.path`)
    if ((op === 'add' || op === 'replace' || op === 'test') && value === undefined) refuse(`${at}.value`, 'is required')
    const source = () => parsePointer(from ?? refuse(`${at}.from`, 'is required'), `${at}.from`)
    switch (op) {
      case 'test':
        // A comparison takes up to twice as long as measuring.
        this.#count(2 * this.#measure(value, at).length, at)
        if (!isDeepStrictEqual(read(this.document, target, at), value)) refuse(at, 'the test failed')
        break
      case 'remove':
        this.#remove(target, at)
        break
      case 'add':
        this.#addCopy(target, value, at)
        break
      case 'replace':
        this.#remove(target, at)
        this.#addCopy(target, value, at)
        break
      case 'copy':
        this.#addCopy(target, read(this.document, source(), at), at)
        break
      case 'move': {
        if (path.startsWith(`${from}/`)) refuse(`${at}.from`, 'must not contain path')
        const moved = read(this.document, source(), at)
        const { length } = this.#remove(source(), at)
        this.#add(target, moved, length, at)
        break
      }
      default:
        refuse(`${at}.op`, 'is not an operation')
    }
  }

  #addCopy(path: readonly string[], value: unknown, at: string): void {
    const text = this.#measure(value, at)
    if (path.length > 0) this.#bound(this.#size + text.length, at)
    this.#add(path, parseExactJson(text), text.length, at)
  }

  /** Adds a value of a size at a path. */
  #add(path: readonly string[], value: unknown, size: number, at: string): void {
    if (path.length > MAX_PATH) refuse(`${at}.path`, `must have at most ${MAX_PATH} levels`)
    const token = path.at(-1)
    if (token === undefined) {
      this.document = value
      this.#size = size
      this.#bound(size, at)
      return
    }
    this.#size += size + token.length
    this.#bound(this.#size, at)
    const container = containerAt(this.document, path.slice(0, -1), at)
    if (Array.isArray(container)) {
      container.splice(token === '-' ? container.length : indexIn(container, token, container.length, at), 0, value)
      return
    }
    if (Object.hasOwn(container, token)) this.#release(container[token], token, at)
    // Assignment would set the prototype for the key `__proto__`.
    Object.defineProperty(container, token, { value, enumerable: true, configurable: true, writable: true })
  }

  /** Removes the value at a path. Returns its JSON. */
  #remove(path: readonly string[], at: string): string {
    const token = path.at(-1)
    const text = this.#release(read(this.document, path, at), token ?? '', at)
    if (token === undefined) {
      this.document = null
      return text
    }
    const container = containerAt(this.document, path.slice(0, -1), at)
    if (Array.isArray(container)) container.splice(indexIn(container, token, container.length - 1, at), 1)
    else delete container[token]
    return text
  }

  #bound(size: number, at: string): void {
    if (size > this.#limits.size) refuse(at, `makes the document larger than ${this.#limits.size} characters of JSON`)
  }

  #release(value: unknown, key: string, at: string): string {
    const text = this.#measure(value, at)
    this.#size = Math.max(0, this.#size - text.length - key.length)
    return text
  }

  /** Returns a value as JSON, and counts its length. */
  #measure(value: unknown, at: string): string {
    const text = textOf(value)
    this.#count(text.length, at)
    return text
  }

  #count(work: number, at: string): void {
    this.#work += work
    if (this.#work > this.#limits.work) refuse(at, 'makes the patch read and copy too much')
  }
}

function textOf(value: unknown): string {
  try {
    return JSON.stringify(value)
  } catch (error) {
    if (!(error instanceof RangeError)) throw error
    return refuse('patch', 'makes the document nested too deeply')
  }
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
  return Array.isArray(found) || isObject(found) ? found : refuse(at, 'the path does not exist')
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
    else if (isObject(current) && Object.hasOwn(current, token)) current = current[token]
    else refuse(at, 'the path does not exist')
  }
  return current
}
