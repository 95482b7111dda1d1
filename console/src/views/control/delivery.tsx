import { Anchor, Text } from '@mantine/core'
import type { WebhookDelivery } from '@muster/client'
import { getWebhookDelivery, redeliverWebhookDelivery } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { Link, useNavigate, useParams } from '@tanstack/react-router'
import { api, every, POLL_MS } from '#api.ts'
import { ActionButton } from '#components/actions.tsx'
import { Page } from '#components/page.tsx'
import { Facts, Section } from '#components/record.tsx'
import { Loaded } from '#components/states.tsx'
import { StatusBadge } from '#components/status.tsx'
import { When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.webhooks

/** A delivery: its attempts, what was sent and what was answered. */
export function DeliveryView() {
  const projectId = useProjectId()
  const { webhookId, deliveryId } = useParams({ strict: false }) as { webhookId: string; deliveryId: string }
  const isAllowed = usePermissions(projectId)
  const navigate = useNavigate()
  const delivery = useQuery<WebhookDelivery>({
    queryKey: ['delivery', deliveryId],
    queryFn: async ({ signal }) => getWebhookDelivery(api, { delivery_id: deliveryId }, { signal }),
    // A settled delivery never changes.
    refetchInterval: query => (query.state.data?.status === 'queued' ? every(POLL_MS)(query) : false),
  })
  const open = (id: string) => `/p/${projectId}/webhooks/${webhookId}/deliveries/${id}`
  return (
    <Loaded query={delivery} action="webhooks:GetWebhookDelivery">
      {({ id, event_type, payload, status, status_code, attempts, response_body, redelivery_of, ...times }) => (
        <Page
          title={event_type}
          intro={
            <Anchor component={Link} to={`/p/${projectId}/webhooks/${webhookId}`} size="sm" underline="always">
              {texts.all}
            </Anchor>
          }
          actions={
            isAllowed('webhooks:RedeliverWebhookDelivery') && (
              <ActionButton
                size="sm"
                label={texts.redeliver}
                run={async () => {
                  const made = await redeliverWebhookDelivery(api, { delivery_id: id })
                  await navigate({ to: open(made.id) })
                }}
                message={texts.queued(1)}
                stale={[['deliveries', webhookId]]}
              />
            )
          }
        >
          <Section title={texts.delivery}>
            <Facts
              facts={[
                [texts.state, <StatusBadge key="state" status={status} />],
                [texts.answer, status_code],
                [texts.attempts, attempts],
                [texts.created, <When key="created" at={times.created_at} />],
                [texts.lastAttempt, times.last_attempt_at && <When key="last" at={times.last_attempt_at} />],
                [texts.nextAttempt, times.next_attempt_at && <When key="next" at={times.next_attempt_at} />],
                [
                  texts.event,
                  isAllowed('events:GetEvent') && event_type !== 'webhooks.test' && (
                    <Anchor
                      key="event"
                      component={Link}
                      to={`/p/${projectId}/events/${payload.id}`}
                      underline="always"
                      className="mono"
                    >
                      {payload.id}
                    </Anchor>
                  ),
                ],
                [
                  texts.original,
                  redelivery_of && (
                    <Anchor
                      key="original"
                      component={Link}
                      to={open(redelivery_of)}
                      underline="always"
                      className="mono"
                    >
                      {redelivery_of}
                    </Anchor>
                  ),
                ],
              ]}
            />
          </Section>
          <Section title={texts.response}>
            {response_body ? (
              <Value value={response_body} label={texts.response} />
            ) : (
              <Text c="dimmed">{status === 'queued' ? texts.noResponseYet : texts.noResponse}</Text>
            )}
          </Section>
          <Section title={texts.sent}>
            <Value value={payload} label={texts.sent} />
          </Section>
        </Page>
      )}
    </Loaded>
  )
}
