import { z } from 'zod'
import { type Fragment, prefix, sql } from '../core/db/sql.ts'

/** One key space of paths for the files of a project, and so for its documents. */

/** Below it only the platform writes. */
export const RESERVED = '/.system'
const MAX_CODE_POINTS = 1024
const CONTROL = /\p{Cc}/u

/** A path that cannot be one, with the problem's code. */
export class PathError extends Error {
  readonly code: 'INVALID_VALUE' | 'RESERVED_PATH'
  constructor(message: string, code: PathError['code'] = 'INVALID_VALUE') {
    super(message)
    this.code = code
  }
}

/**
 * The one spelling of a path: from the root, without empty, `.` and `..` segments, without a trailing slash, NFC.
 * `/` is the root, which is a directory only. Throws PathError for one that leaves the root or holds control characters.
 */
export function normalizePath(text: string): string {
  const path = normalizeOnce(text)
  // Resolving segments may bare white space at the end.
  return path === text ? path : normalizePath(path)
}

function normalizeOnce(text: string): string {
  if (CONTROL.test(text)) throw new PathError('holds control characters')
  const segments: string[] = []
  for (const segment of text.trim().normalize('NFC').split('/')) {
    if (segment === '' || segment === '.') continue
    if (segment !== '..') segments.push(segment)
    else if (segments.pop() === undefined) throw new PathError('leads out of the root')
  }
  const path = `/${segments.join('/')}`
  if ([...path].length > MAX_CODE_POINTS) throw new PathError(`must be at most ${MAX_CODE_POINTS} characters`)
  return path
}

/** The path of a file: its directory, the root when null, and its name. Throws PathError. */
export const filePath = (directory: string | null | undefined, filename: string): string =>
  normalizePath(`${directory ?? ''}/${filename}`)

/** Directory part of a normalized path. */
export const directoryOf = (path: string): string => path.slice(0, Math.max(1, path.lastIndexOf('/')))

/** Last segment of a normalized path. */
export const leafOf = (path: string): string => path.slice(path.lastIndexOf('/') + 1)

/** Whether a normalized path is at or below a normalized directory. */
const isUnder = (path: string, directory: string): boolean =>
  directory === '/' || path === directory || path.startsWith(`${directory}/`)

export const isReserved = (path: string): boolean => isUnder(path, RESERVED)

/** A normalized path that a caller may write to. Throws PathError. */
export function writablePath(path: string): string {
  if (isReserved(path)) throw new PathError(`below ${RESERVED} only the platform writes`, 'RESERVED_PATH')
  return path
}

const checked = (work: (text: string) => string) =>
  z.string().transform((text, context) => {
    try {
      return work(text)
    } catch (error) {
      if (!(error instanceof PathError)) throw error
      context.addIssue({ code: 'custom', params: { code: error.code }, message: error.message })
      return z.NEVER
    }
  })

/** A name to download by: 1 to 255 bytes, without `/` and control characters. */
export const Filename = z
  .string()
  .refine(name => name !== '' && Buffer.byteLength(name) <= 255, 'must be 1 to 255 bytes')
  .refine(name => !name.includes('/') && !CONTROL.test(name), 'must hold no / and no control characters')

/** A path to write to, as a caller spells it; parses to its one spelling. The root is none. */
export const WritablePath = checked(text => {
  const path = writablePath(normalizePath(text))
  if (path === '/') throw new PathError('must name something below the root')
  return path
}).meta({ type: 'string' })

/** A directory to write to, as a caller spells it; parses to its one spelling. */
export const WritableDirectory = checked(text => writablePath(normalizePath(text))).meta({ type: 'string' })

/** A directory or an exact path to search below; parses to its one spelling. */
export const Directory = checked(normalizePath).meta({ type: 'string' })

/** Rows at or below a normalized directory; served by a btree on a column with collation C. */
export const atOrBelow = (column: Fragment, directory: string): Fragment =>
  directory === '/'
    ? sql.fragment`true`
    : sql.fragment`(${column} = ${directory} or ${column} like ${prefix(`${directory}/`)})`

/** Rows outside of what the platform wrote; a row without a path is one. */
export const outsideReserved = (column: Fragment): Fragment =>
  sql.fragment`(${column} is null or not starts_with(${column}, '/.system/'))`

/** The rows that a list shows below the directory asked for: the reserved ones only when it is among them. */
export const listedBelow = (column: Fragment, directory: string | undefined): Fragment =>
  directory !== undefined && isReserved(directory)
    ? atOrBelow(column, directory)
    : sql.fragment`(${outsideReserved(column)} and ${atOrBelow(column, directory ?? '/')})`
