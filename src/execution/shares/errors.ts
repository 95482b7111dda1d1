import type { CodesOf, ErrorTable } from '#core/base/errors.ts'

export const shareErrors = {
  PUBLIC_SHARES_DISABLED: {
    status: 403,
    description: 'Share with grantee * while the deployment forbids it',
    message: 'Shares with all projects are disabled in this deployment',
    hint: 'Set a project as grantee, or have the operator set SHARES_ALLOW_PUBLIC.',
  },
  SHARE_ACROSS_CELLS: {
    status: 409,
    description: 'Publisher and grantee are in different cells of the deployment',
    message: 'Publisher and grantee of a share must be in the same cell',
    hint: 'Create the tool or agent in a project of the cell of the grantee.',
  },
  SHARE_CAP_EXCEEDED: {
    status: 429,
    description: 'Share cap spent',
    message: 'Share {share_id} reached its limit of {calls} calls for the current {window} window',
  },
  SHARE_IN_USE: {
    status: 409,
    description: "The grantee's resources still name the shared resource",
    message: 'Resources of the project still reference the shared resource',
    hint: 'Update the resources in meta.references, or repeat with force=true, after which they fail when used.',
  },
  SHARE_REVOKED: {
    status: 403,
    description: "Share, or the caller's acceptance, revoked by the publisher",
    message: 'Share {share_id} was revoked by its publisher',
  },
} as const satisfies ErrorTable

declare module '#core/base/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof shareErrors> {}
}
