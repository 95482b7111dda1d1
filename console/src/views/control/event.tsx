import { Anchor, Card, Table, Text } from '@mantine/core'
import type { EventWebhook } from '@muster/client'
import {
  getEvent,
  listEventWebhooks,
  listWebhooks,
  redeliverWebhookDelivery,
  redispatchEvent,
} from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useIds } from '#address.ts'
import { api, every, POLL_MS } from '#api.ts'
import { ActionButton } from '#components/actions.tsx'
import { RecordLink } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Facts, Section } from '#components/record.tsx'
import { RecordPage } from '#components/record-page.tsx'
import { Loaded, Refused } from '#components/states.tsx'
import { StatusBadge } from '#components/status.tsx'
import { visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.events

/** An event: its data, and its outcome at each webhook. */
export function EventView() {
  const projectId = useProjectId()
  const { eventId } = useIds()
  const isAllowed = usePermissions(projectId)
  return (
    <RecordPage
      queryKey={['event', eventId]}
      get={getEvent}
      ids={{ event_id: eventId }}
      refetchInterval={query => (query.state.data?.dispatched_at ? false : every(POLL_MS)(query))}
    >
      {({ dispatched_at, ...envelope }) => (
        <Page
          title={envelope.event}
          intro={
            <Anchor component={Link} to={`/p/${projectId}/events`} size="sm" underline="always">
              {texts.all}
            </Anchor>
          }
        >
          <Section title={texts.event}>
            <Facts
              facts={[
                [texts.resource, visible(envelope.resource_type)],
                [
                  texts.resourceId,
                  <span key="id" className="mono">
                    {visible(envelope.resource_id)}
                  </span>,
                ],
                [texts.time, <When key="time" at={envelope.timestamp} />],
                [texts.dispatched, dispatched_at ? <When key="dispatched" at={dispatched_at} /> : texts.notDispatched],
              ]}
            />
          </Section>
          <Section title={texts.outcomes}>
            {isAllowed(listWebhooks) === false ? <Refused operation={listWebhooks} /> : <Outcomes eventId={eventId} />}
          </Section>
          <Section title={texts.envelope}>
            <Value value={envelope} label={texts.envelope} />
          </Section>
        </Page>
      )}
    </RecordPage>
  )
}

function Outcomes({ eventId }: { eventId: string }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const outcomes = useQuery<EventWebhook[]>({
    queryKey: ['event', eventId, 'webhooks'],
    queryFn: async ({ signal }) =>
      (await listEventWebhooks(api, { event_id: eventId, limit: 100 }, { signal }).page()).data,
    refetchInterval: every(POLL_MS),
  })
  const stale = [['event', eventId, 'webhooks']]
  return (
    <Loaded query={outcomes} operation={listWebhooks}>
      {rows =>
        rows.length === 0 ? (
          <Text c="dimmed">{texts.noWebhooks}</Text>
        ) : (
          <>
            <Card padding={0} withBorder radius="md">
              <Table verticalSpacing="sm" horizontalSpacing="md" className="rows" aria-label={texts.outcomes}>
                <Table.Tbody>
                  {rows.map(({ webhook_id, name, outcome, delivery_id }) => (
                    <Table.Tr key={webhook_id}>
                      <Table.Td>
                        <RecordLink to={`/p/${projectId}/webhooks/${webhook_id}`}>{visible(name)}</RecordLink>
                      </Table.Td>
                      <Table.Td>
                        <StatusBadge status={outcome} label={texts.outcome[outcome]} />
                        <Text size="sm" c="dimmed">
                          {texts.reason[outcome]}
                        </Text>
                      </Table.Td>
                      <Table.Td>
                        {delivery_id && (
                          <Anchor
                            component={Link}
                            to={`/p/${projectId}/webhooks/${webhook_id}/deliveries/${delivery_id}`}
                            size="sm"
                            underline="always"
                          >
                            {strings.webhooks.delivery}
                          </Anchor>
                        )}
                      </Table.Td>
                      <Table.Td>
                        {delivery_id && isAllowed(redeliverWebhookDelivery) && (
                          <ActionButton
                            label={strings.webhooks.redeliver}
                            run={async () => redeliverWebhookDelivery(api, { delivery_id })}
                            stale={stale}
                          />
                        )}
                        {!delivery_id && isAllowed(redispatchEvent) && (
                          <ActionButton
                            label={texts.send}
                            question={texts.sendText(visible(name))}
                            run={async () => redispatchEvent(api, { event_id: eventId, webhook_id })}
                            stale={stale}
                          />
                        )}
                      </Table.Td>
                    </Table.Tr>
                  ))}
                </Table.Tbody>
              </Table>
            </Card>
            <Text size="sm" c="dimmed">
              {texts.derived}
            </Text>
          </>
        )
      }
    </Loaded>
  )
}
