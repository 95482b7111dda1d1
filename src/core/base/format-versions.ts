import { AppError } from './errors.ts'

/**
 * Versions of stored formats: messages of queues and working state. A process reads its version of a format and the one
 * before; work in a later version is left to a process of a later release.
 */

/** Field of a stored object with the version of its format; absent for version 1. */
const VERSION = 'format_version'

/**
 * Stored data has a format that only a later release reads. A handler lets it pass, so that its message is left to a worker of
 * that release; a caller may repeat its request, which a process of that release answers.
 */
export class NewerFormatError extends AppError {
  constructor(what: string) {
    super('SERVICE_NOT_READY', {
      message: `${what} has a format of a later release`,
      headers: { 'Retry-After': '1' },
    })
  }
}

/** Returns the stored form of an object in a version of its format. */
export const withFormatVersion = <T extends object>(value: T, version: number): T =>
  version === 1 ? value : { ...value, [VERSION]: version }

/** Returns the version of the format of a stored object. */
export const formatVersionOf = (value: object): number => Number((value as Record<string, unknown>)[VERSION] ?? 1)

/** SQL expression of the version of the format of an object. */
export const formatVersionIn = (json: string): string => `coalesce((${json} ->> '${VERSION}')::int, 1)`

/**
 * Returns a stored object if this process reads its format.
 * @throws NewerFormatError
 */
export function knownFormat<T extends object>(value: T, version: number, what: string): T {
  if (formatVersionOf(value) > version) throw new NewerFormatError(what)
  return value
}
