import { z } from 'zod'
import { type Fragment, prefix, sql } from '#core/db/sql.ts'

/** Root of platform files; callers cannot write below it. */
export const RESERVED = '/.system'
const MAX_CODE_POINTS = 1024
const CONTROL = /\p{Cc}/u

/** Invalid or reserved path, with the code of the problem. */
export class PathError extends Error {
  readonly code: 'INVALID_VALUE' | 'RESERVED_PATH'
  constructor(message: string, code: PathError['code'] = 'INVALID_VALUE') {
    super(message)
    this.code = code
  }
}

/**
 * Returns the canonical form of a path: absolute, without empty, `.` and `..` segments, without a trailing slash, NFC.
 * `/` is the root, which is always a directory. Throws PathError for paths outside the root and for control characters.
 */
export function normalizePath(text: string): string {
  const path = normalizeOnce(text)
  // Resolving segments can expose trailing white space.
  return path === text ? path : normalizePath(path)
}

function normalizeOnce(text: string): string {
  if (CONTROL.test(text)) throw new PathError('must not contain control characters')
  const segments: string[] = []
  for (const segment of text.trim().normalize('NFC').split('/')) {
    if (segment === '' || segment === '.') continue
    if (segment !== '..') segments.push(segment)
    else if (segments.pop() === undefined) throw new PathError('must not lead outside the root')
  }
  const path = `/${segments.join('/')}`
  if ([...path].length > MAX_CODE_POINTS) throw new PathError(`must be at most ${MAX_CODE_POINTS} characters`)
  return path
}

/** Returns the path of a file in a directory, by default the root. Throws PathError. */
export const filePath = (directory: string | null | undefined, filename: string): string =>
  normalizePath(`${directory ?? ''}/${filename}`)

/** Returns the directory of a normalized path. */
export const directoryOf = (path: string): string => path.slice(0, Math.max(1, path.lastIndexOf('/')))

/** Returns the last segment of a normalized path. */
export const leafOf = (path: string): string => path.slice(path.lastIndexOf('/') + 1)

/** Whether a normalized path is at or below a normalized directory. */
const isUnder = (path: string, directory: string): boolean =>
  directory === '/' || path === directory || path.startsWith(`${directory}/`)

export const isReserved = (path: string): boolean => isUnder(path, RESERVED)

/** Returns a normalized path that is not reserved. Throws PathError. */
export function writablePath(path: string): string {
  if (isReserved(path)) throw new PathError(`is below ${RESERVED}, which is reserved`, 'RESERVED_PATH')
  return path
}

const pathSchema = (normalize: (text: string) => string) =>
  z.string().transform((text, context) => {
    try {
      return normalize(text)
    } catch (error) {
      if (!(error instanceof PathError)) throw error
      context.addIssue({ code: 'custom', params: { code: error.code }, message: error.message })
      return z.NEVER
    }
  })

/** Filename for downloads: 1 to 255 bytes, without `/` and control characters. */
export const Filename = z
  .string()
  .refine(name => name !== '' && Buffer.byteLength(name) <= 255, 'must be 1 to 255 bytes')
  .refine(name => !name.includes('/') && !CONTROL.test(name), 'must not contain / or control characters')

/** Path that the caller may write, except the root; parses to its canonical form. */
export const WritablePath = pathSchema(text => {
  const path = writablePath(normalizePath(text))
  if (path === '/') throw new PathError('must be below the root')
  return path
}).meta({ type: 'string' })

/** Directory that the caller may write to; parses to its canonical form. */
export const WritableDirectory = pathSchema(text => writablePath(normalizePath(text))).meta({ type: 'string' })

/** Directory or exact path to search in; parses to its canonical form. */
export const Directory = pathSchema(normalizePath).meta({ type: 'string' })

/** Condition for rows at or below a normalized directory. A btree on a column with collation C serves it. */
export const atOrBelow = (column: Fragment, directory: string): Fragment =>
  directory === '/'
    ? sql.fragment`true`
    : sql.fragment`(${column} = ${directory} or ${column} like ${prefix(`${directory}/`)})`

/** Condition for rows that are not reserved, including rows without a path. */
export const outsideReserved = (column: Fragment): Fragment =>
  sql.fragment`(${column} is null or not starts_with(${column}, '/.system/'))`

/** Condition for the rows that a list shows in a directory: reserved rows only if the directory is reserved. */
export const listedBelow = (column: Fragment, directory: string | undefined): Fragment =>
  directory !== undefined && isReserved(directory)
    ? atOrBelow(column, directory)
    : sql.fragment`(${outsideReserved(column)} and ${atOrBelow(column, directory ?? '/')})`
