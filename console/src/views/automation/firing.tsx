import { Anchor, Text } from '@mantine/core'
import { getTriggerFiring } from '@muster/client/operations'
import { Link } from '@tanstack/react-router'
import { useIds } from '#address.ts'
import { every, POLL_MS } from '#api.ts'
import { Page } from '#components/page.tsx'
import { Facts, Section } from '#components/record.tsx'
import { RecordPage } from '#components/record-page.tsx'
import { StatusBadge } from '#components/status.tsx'
import { visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { Started } from './trigger.tsx'

const texts = strings.triggers

/** A firing: its input, its outcome and the work it started. */
export function FiringView() {
  const projectId = useProjectId()
  const { triggerId, firingId } = useIds()
  return (
    <RecordPage
      queryKey={['firings', projectId, triggerId, firingId]}
      get={getTriggerFiring}
      ids={{ firing_id: firingId }}
      refetchInterval={query => (query.state.data?.completed_at ? false : every(POLL_MS)(query))}
    >
      {({ source, status, attempts, input, result, error, event_id, scheduled_for, fired_by, ...record }) => (
        <Page
          title={`${texts.firing}: ${texts.sources[source]}`}
          intro={
            <Anchor component={Link} to={`/p/${projectId}/triggers/${triggerId}`} size="sm" underline="always">
              {texts.allFirings}
            </Anchor>
          }
        >
          <Section title={texts.firing}>
            <Facts
              facts={[
                [strings.state, <StatusBadge key="state" status={status} />],
                [texts.time, <When key="time" at={record.created_at} />],
                [texts.completed, record.completed_at && <When key="end" at={record.completed_at} />],
                [texts.attempts, attempts],
                [texts.scheduled, scheduled_for && <When key="due" at={scheduled_for} />],
                [
                  strings.events.event,
                  event_id && (
                    <Anchor
                      key="event"
                      component={Link}
                      to={`/p/${projectId}/events/${event_id}`}
                      underline="always"
                      className="mono"
                    >
                      {event_id}
                    </Anchor>
                  ),
                ],
                [
                  texts.by,
                  fired_by && (
                    <span key="by" className="mono">
                      {fired_by.id}
                    </span>
                  ),
                ],
                [strings.started, result && <Started key="started" result={result} projectId={projectId} />],
              ]}
            />
          </Section>
          {error && (
            <Section title={texts.error}>
              <Text>{visible(error.message)}</Text>
              <Value value={error} label={texts.error} />
            </Section>
          )}
          {result?.output != null && (
            <Section title={texts.output}>
              <Value value={result.output} label={texts.output} />
            </Section>
          )}
          <Section title={texts.input}>
            <Value value={input} label={texts.input} />
          </Section>
        </Page>
      )}
    </RecordPage>
  )
}
