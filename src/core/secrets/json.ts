import { AppError } from '../base/errors.ts'
import { parseExactJson } from '../base/exact-json.ts'
import { knownFormat, withFormatVersion } from '../base/format-versions.ts'
import type { Services } from '../base/services.ts'
import type { SealedFor } from './secretbox.ts'

/** JSON values sealed for their row. */

type Box = Pick<Services, 'secrets'>

/**
 * Seals a JSON value for its row.
 * @param version version of its format; only for an object whose keys are ours, since a caller may choose any key
 */
export const sealJson = ({ secrets }: Box, value: object, row: SealedFor, version = 1): string =>
  secrets.seal(JSON.stringify(withFormatVersion(value, version)), row)

/**
 * Opens a sealed JSON value; `what` names it in errors.
 * @param version latest version of its format that this process reads; absent for a format without versions
 * @throws SECRET_NOT_DECRYPTABLE, NewerFormatError
 */
export function openJson<T extends object>(
  { secrets }: Box,
  sealed: string,
  row: SealedFor,
  what: string,
  version?: number,
): T {
  const opened = secrets.open(sealed, row)
  if (!opened.ok) throw new AppError('SECRET_NOT_DECRYPTABLE', { message: `${what} cannot be decrypted` })
  const value: T = parseExactJson(opened.value)
  return version === undefined ? value : knownFormat(value, version, what)
}
