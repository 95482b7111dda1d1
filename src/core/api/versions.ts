import { z } from 'zod'
import { raise, raiseInvalid } from './errors.ts'

/** A version number in a query; absent is the caller's default. */
export const versionQuery = z
  .string()
  .regex(/^[1-9]\d{0,8}$/, 'must be a positive integer')
  .transform(Number)
  .optional()

/** A version number as a path names it. Raises VALIDATION_FAILED. */
export function versionNumber(text: string): number {
  const number = Number(text)
  if (!/^\d{1,9}$/.test(text) || number < 1)
    raiseInvalid({ code: 'INVALID_VALUE', path: 'version', message: 'must be a positive integer' })
  return number
}

/** Raises RESOURCE_NOT_FOUND for a version that a row does not have. */
export const noVersion = (id: string, version: number): never =>
  raise('RESOURCE_NOT_FOUND', { message: `There is no version ${version} of ${id}`, meta: { id, version } })

/** Raises VERSION_CONFLICT when the caller expected another version. */
export function requireVersion(row: { version: number }, expected_version: number | undefined): void {
  if (expected_version !== undefined && expected_version !== row.version)
    raise('VERSION_CONFLICT', { meta: { current_version: row.version, expected_version } })
}
