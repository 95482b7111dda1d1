import { z } from 'zod'
import { integerQuery, MAX_INTEGER } from '../api/lists.ts'
import { raise, raiseInvalid } from '../base/errors.ts'
import { type Caller, type PrincipalRecord, principalRecord } from '../iam/caller.ts'

/** Field of a body: the label of the version that the write creates. */
export const versionLabel = z
  .string()
  .trim()
  .min(1)
  .max(255)
  .optional()
  .describe('Label of the version that this write creates')

/** Field of a body: the version that the row must have. */
export const expectedVersion = z
  .int()
  .min(1)
  .optional()
  .describe('Version that the resource must have for the write to succeed')

/** Schema of an optional version number in a query. */
export const versionQuery = integerQuery(1, MAX_INTEGER).optional()

/** Parses a number in a path, from 1. @throws VALIDATION_FAILED */
export function pathNumber(path: string, text: string): number {
  const number = Number(text)
  if (!/^\d{1,9}$/.test(text) || number < 1)
    raiseInvalid({ code: 'INVALID_VALUE', path, message: 'must be a positive integer' })
  return number
}

/** Parses a version number in a path. @throws VALIDATION_FAILED */
export const versionNumber = (text: string): number => pathNumber('version', text)

/** Raises RESOURCE_NOT_FOUND for a missing version. */
export const noVersion = (id: string, version: number): never =>
  raise('RESOURCE_NOT_FOUND', { message: `Version ${version} of ${id} not found`, meta: { id, version } })

/** Raises VERSION_CONFLICT if the row is not at the expected version. */
export function requireVersion(row: { version: number }, expected_version: number | undefined): void {
  if (expected_version !== undefined && expected_version !== row.version)
    raise('VERSION_CONFLICT', { meta: { current_version: row.version, expected_version } })
}

/** The author and label of a version. `created_by` is null for a copy. */
export type VersionAuthor = { created_by: string | null; author: PrincipalRecord | null; label?: string | null }

/** Returns the author of a version created by a request. */
export const versionAuthor = (caller: Caller, label?: string): VersionAuthor => ({
  created_by: caller.user.id,
  author: principalRecord(caller),
  label,
})

/** Returns the author of a version created by cloning a project. */
export const copyAuthor = (caller: Caller): VersionAuthor => ({ created_by: null, author: principalRecord(caller) })
