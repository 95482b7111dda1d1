import { raiseInvalid } from '../../core/api/errors.ts'
import { newId } from '../../core/api/ids.ts'
import { filePath, isReserved, leafOf, normalizePath, PathError, writablePath } from '../paths.ts'
import type { FileRow } from './model.ts'

/** Where a file goes: its path, and the path's last segment. Raises VALIDATION_FAILED. */
export function filePlacement(prefix: string | null | undefined, filename: string): { path: string; filename: string } {
  try {
    const path = writablePath(filePath(prefix, filename))
    return { path, filename: leafOf(path) }
  } catch (error) {
    if (!(error instanceof PathError)) throw error
    return raiseInvalid({ code: error.code, path: 'filename', message: error.message })
  }
}

/** The last segment of a name that came with a request; null for what is none. */
const lastSegment = (name: unknown): string | null => {
  if (typeof name !== 'string') return null
  const last = leafOf(name).trim()
  return last === '' || last === '.' || last === '..' ? null : last
}

/**
 * The path that an unchecked body asks for, by which policies are asked before the body is validated; null when it is none.
 * A file that is named by its id alone gets a name here that no policy can know either.
 */
export function requestedPath(body: Record<string, unknown>): string | null {
  const { prefix, filename, name, file } = body
  if (prefix !== undefined && prefix !== null && typeof prefix !== 'string') return null
  const named = filename ?? name ?? (file as { filename?: unknown } | undefined)?.filename
  const last = named === undefined || named === null ? newId('file') : lastSegment(named)
  if (last === null) return null
  try {
    return filePath(prefix && normalizePath(prefix), last)
  } catch (error) {
    if (error instanceof PathError) return null
    throw error
  }
}

/** Below the reserved root only the platform writes. Raises VALIDATION_FAILED with RESERVED_PATH. */
export function requireWritable({ path }: Pick<FileRow, 'path'>): void {
  if (path !== null && isReserved(path))
    raiseInvalid({ code: 'RESERVED_PATH', path: 'path', message: 'below /.system only the platform writes' })
}
