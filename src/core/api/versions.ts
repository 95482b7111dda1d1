import { z } from 'zod'
import { raise, raiseInvalid } from './errors.ts'

/** Schema of an optional version number in a query. */
export const versionQuery = z
  .string()
  .regex(/^[1-9]\d{0,8}$/, 'must be a positive integer')
  .transform(Number)
  .optional()

/** Parses a version number in a path. Raises VALIDATION_FAILED. */
export function versionNumber(text: string): number {
  const number = Number(text)
  if (!/^\d{1,9}$/.test(text) || number < 1)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'version', message: 'must be a positive integer' })
  return number
}

/** Raises RESOURCE_NOT_FOUND for a missing version. */
export const noVersion = (id: string, version: number): never =>
  raise('RESOURCE_NOT_FOUND', { message: `Version ${version} of ${id} not found`, meta: { id, version } })

/** Raises VERSION_CONFLICT if the row is not at the expected version. */
export function requireVersion(row: { version: number }, expected_version: number | undefined): void {
  if (expected_version !== undefined && expected_version !== row.version)
    raise('VERSION_CONFLICT', { meta: { current_version: row.version, expected_version } })
}
