import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const shareErrors = {
  PUBLIC_SHARES_DISABLED: {
    status: 403,
    description: 'Share with grantee * while the deployment forbids it',
    message: 'The deployment does not allow shares with every project',
    hint: 'Name a project as grantee, or have the operator set SHARES_ALLOW_PUBLIC.',
  },
  SHARE_CAP_EXCEEDED: {
    status: 429,
    description: 'Share cap spent',
    message: 'The {calls} calls that the share {share_id} allows in a {window} are spent',
  },
  SHARE_IN_USE: {
    status: 409,
    description: "The grantee's resources still name the shared resource",
    message: 'Resources of the project still name what is shared',
    hint: 'Change what meta.references lists, or repeat with force=true: it then fails when it is used.',
  },
  SHARE_REVOKED: {
    status: 403,
    description: "Share, or the caller's acceptance, revoked by the publisher",
    message: 'The share {share_id} has been revoked by its publisher',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof shareErrors> {}
}
