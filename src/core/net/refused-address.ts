import type { Problem } from '../api/errors.ts'
import type { Services } from '../process/services.ts'

/**
 * The problem of an address in a body that the egress rule would refuse to call. An address that stays as it was stored is
 * left alone: the deployment may have allowed it then, and says so when it is called.
 * @param path of the field in the body
 */
export function addressProblems(
  { egress }: Pick<Services, 'egress'>,
  path: string,
  url: string | null | undefined,
  stored?: string | null,
): Problem[] {
  const refused = url == null || url === stored ? null : egress.refusal(url)
  if (refused === null) return []
  return [{ code: 'ADDRESS_BLOCKED', path, message: `${refused}; the operator may allow it in EGRESS_ALLOW_HOSTS` }]
}
