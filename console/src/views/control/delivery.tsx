import { Anchor, Text } from '@mantine/core'
import type { WebhookDelivery } from '@muster/client'
import { getEvent, getWebhookDelivery, redeliverWebhookDelivery } from '@muster/client/operations'
import { Link, useNavigate } from '@tanstack/react-router'
import { useIds } from '#address.ts'
import { api, every, POLL_MS } from '#api.ts'
import { ActionButton } from '#components/actions.tsx'
import { Page } from '#components/page.tsx'
import { Facts, Section } from '#components/record.tsx'
import { RecordPage } from '#components/record-page.tsx'
import { StatusBadge } from '#components/status.tsx'
import { When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.webhooks

/** A delivery: its attempts, its request and the response. */
export function DeliveryView() {
  const { deliveryId } = useIds()
  return (
    <RecordPage
      queryKey={['delivery', deliveryId]}
      get={getWebhookDelivery}
      ids={{ delivery_id: deliveryId }}
      // A settled delivery never changes.
      refetchInterval={query => (query.state.data?.status === 'queued' ? every(POLL_MS)(query) : false)}
    >
      {record => <DeliveryPage delivery={record} />}
    </RecordPage>
  )
}

const addressOf = (projectId: string, webhookId: string, id: string) =>
  `/p/${projectId}/webhooks/${webhookId}/deliveries/${id}`

function DeliveryFacts({ delivery }: { delivery: WebhookDelivery }) {
  const projectId = useProjectId()
  const { webhookId } = useIds()
  const isAllowed = usePermissions(projectId)
  const { event_type, payload, status, status_code, attempts, redelivery_of, ...times } = delivery
  return (
    <Facts
      facts={[
        [strings.state, <StatusBadge key="state" status={status} />],
        [texts.answer, status_code],
        [texts.attempts, attempts],
        [strings.created, <When key="created" at={times.created_at} />],
        [texts.lastAttempt, times.last_attempt_at && <When key="last" at={times.last_attempt_at} />],
        [texts.nextAttempt, times.next_attempt_at && <When key="next" at={times.next_attempt_at} />],
        [
          texts.event,
          isAllowed(getEvent) && event_type !== 'webhooks.test' && (
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
              to={addressOf(projectId, webhookId, redelivery_of)}
              underline="always"
              className="mono"
            >
              {redelivery_of}
            </Anchor>
          ),
        ],
      ]}
    />
  )
}

function DeliveryPage({ delivery }: { delivery: WebhookDelivery }) {
  const projectId = useProjectId()
  const { webhookId } = useIds()
  const isAllowed = usePermissions(projectId)
  const navigate = useNavigate()
  const { id, event_type, payload, status, response_body } = delivery
  return (
    <Page
      title={event_type}
      intro={
        <Anchor component={Link} to={`/p/${projectId}/webhooks/${webhookId}`} size="sm" underline="always">
          {texts.all}
        </Anchor>
      }
      actions={
        isAllowed(redeliverWebhookDelivery) && (
          <ActionButton
            size="sm"
            label={texts.redeliver}
            run={async () => {
              const made = await redeliverWebhookDelivery(api, { delivery_id: id })
              await navigate({ to: addressOf(projectId, webhookId, made.id) })
            }}
            message={texts.queued(1)}
            stale={[['deliveries', webhookId]]}
          />
        )
      }
    >
      <Section title={texts.delivery}>
        <DeliveryFacts delivery={delivery} />
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
  )
}
