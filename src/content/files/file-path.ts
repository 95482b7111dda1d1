import { raiseInvalid } from '#core/base/errors.ts'
import { newId } from '#core/base/ids.ts'
import { filePath, isReserved, leafOf, normalizePath, PathError, writablePath } from '../paths.ts'
import { type FileRow, fileKind } from './model.ts'

/** Returns the path of a file and the last segment of that path. Raises VALIDATION_FAILED. */
export function filePlacement(prefix: string | null | undefined, filename: string): { path: string; filename: string } {
  try {
    const path = writablePath(filePath(prefix, filename))
    return { path, filename: leafOf(path) }
  } catch (error) {
    if (!(error instanceof PathError)) throw error
    return raiseInvalid({ code: error.code, path: 'filename', message: error.message })
  }
}

/** Returns the last segment of an unvalidated filename, or null if there is none. */
const lastSegment = (name: unknown): string | null => {
  if (typeof name !== 'string') return null
  const last = leafOf(name).trim()
  return last === '' || last === '.' || last === '..' ? null : last
}

/**
 * Returns the path requested by an unvalidated body, or null for an invalid path. Policies are evaluated on it before
 * the body is validated. A file without a filename gets a random name here, which no policy can match.
 */
export function requestedPath(body: Record<string, unknown>): string | null {
  const { prefix, filename, name, file } = body
  if (prefix !== undefined && prefix !== null && typeof prefix !== 'string') return null
  const requested = filename ?? name ?? (file as { filename?: unknown } | undefined)?.filename
  const last = requested === undefined || requested === null ? newId(fileKind.prefix) : lastSegment(requested)
  if (last === null) return null
  try {
    return filePath(prefix && normalizePath(prefix), last)
  } catch (error) {
    if (error instanceof PathError) return null
    throw error
  }
}

/** Refuses files below the reserved root. Raises VALIDATION_FAILED with RESERVED_PATH. */
export function requireWritable({ path }: Pick<FileRow, 'path'>): void {
  if (path !== null && isReserved(path))
    raiseInvalid({ code: 'RESERVED_PATH', path: 'path', message: 'is below /.system, which is reserved' })
}
