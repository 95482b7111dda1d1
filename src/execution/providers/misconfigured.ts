import { AppError } from '#core/base/errors.ts'

export type MisconfiguredReason =
  | 'no_credential'
  | 'no_project'
  | 'secret_undecryptable'
  | 'secret_shape'
  | 'config_key'
  | 'egress_blocked'

/** Returns the error of a provider record that cannot be used. */
export const misconfiguredProvider = (
  providerId: string | null,
  reason: MisconfiguredReason,
  message: string,
): AppError =>
  new AppError('AI_PROVIDER_MISCONFIGURED', {
    message,
    meta: { reason, ...(providerId ? { ai_provider_id: providerId } : {}) },
  })
