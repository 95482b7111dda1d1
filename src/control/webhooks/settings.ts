import { flag, integer, setting, settings, type Values } from '#core/base/setting.ts'

export const webhookSettings = settings(
  'control',
  {
    WEBHOOK_TIMEOUT_MS: setting(integer(100), '10000', 'Timeout of a delivery attempt, including redirects.'),
    WEBHOOK_LEASE_MS: setting(integer(200), '60000', 'Lease of a delivery attempt; must exceed WEBHOOK_TIMEOUT_MS.'),
    WEBHOOK_SWEEP_INTERVAL_MS: setting(
      integer(100),
      '5000',
      'Polling interval for due deliveries without a valid lease.',
    ),
    // Above 5,000, an event does not fit into one transaction of the dispatcher.
    WEBHOOK_MAX_PER_PROJECT: setting(integer(1, 5000), '100', 'Maximum webhooks per project.'),
    WEBHOOK_DELIVERY_RETENTION_DAYS: setting(integer(1), '30', 'Retention of settled deliveries.'),
    WEBHOOK_AUTO_DISABLE: setting(
      flag,
      'true',
      'Whether a webhook is disabled after 100 consecutive failed deliveries over at least a day.',
    ),
  },
  (config, problem) => {
    if (config.WEBHOOK_LEASE_MS <= config.WEBHOOK_TIMEOUT_MS)
      problem('WEBHOOK_LEASE_MS', 'must be greater than WEBHOOK_TIMEOUT_MS')
  },
)

export const webhookEgressSettings = settings('egress', {
  EGRESS_MAX_REDIRECTS: setting(integer(0, 20), '5', 'Maximum redirects of a webhook delivery.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof webhookSettings>, Values<typeof webhookEgressSettings> {}
}
