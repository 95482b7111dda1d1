import { Anchor, Text } from '@mantine/core'
import type { TriggerFiring } from '@muster/client'
import { getTriggerFiring } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { Link, useParams } from '@tanstack/react-router'
import { api, every, POLL_MS } from '../api.ts'
import { Page } from '../components/page.tsx'
import { Facts, Section } from '../components/record.tsx'
import { Loaded } from '../components/states.tsx'
import { StatusBadge } from '../components/status.tsx'
import { visible, When } from '../components/text.tsx'
import { Value } from '../components/value.tsx'
import { useProjectId } from '../projects.ts'
import * as strings from '../strings.ts'
import { Started } from './trigger.tsx'

/** A firing: its input, its outcome and what it started. */
export function FiringView() {
  const projectId = useProjectId()
  const { triggerId, firingId } = useParams({ strict: false }) as { triggerId: string; firingId: string }
  const firing = useQuery<TriggerFiring>({
    queryKey: ['firings', projectId, triggerId, firingId],
    queryFn: async ({ signal }) => getTriggerFiring(api, { firing_id: firingId }, { signal }),
    refetchInterval: query => (query.state.data?.completed_at ? false : every(POLL_MS)(query)),
  })
  return (
    <Loaded query={firing} action="triggers:GetTriggerFiring">
      {({ source, status, attempts, input, result, error, event_id, scheduled_for, fired_by, ...record }) => (
        <Page
          title={`${strings.triggers.firing}: ${strings.triggers.sources[source]}`}
          intro={
            <Anchor component={Link} to={`/p/${projectId}/triggers/${triggerId}`} size="sm" underline="always">
              {strings.triggers.allFirings}
            </Anchor>
          }
        >
          <Section title={strings.triggers.firing}>
            <Facts
              facts={[
                [strings.triggers.state, <StatusBadge key="state" status={status} />],
                [strings.triggers.time, <When key="time" at={record.created_at} />],
                [strings.triggers.completed, record.completed_at && <When key="end" at={record.completed_at} />],
                [strings.triggers.attempts, attempts],
                [strings.triggers.scheduled, scheduled_for && <When key="due" at={scheduled_for} />],
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
                  strings.triggers.by,
                  fired_by && (
                    <span key="by" className="mono">
                      {fired_by.id}
                    </span>
                  ),
                ],
                [strings.triggers.started, result && <Started key="started" result={result} projectId={projectId} />],
              ]}
            />
          </Section>
          {error && (
            <Section title={strings.triggers.error}>
              <Text>{visible(error.message)}</Text>
              <Value value={error} label={strings.triggers.error} />
            </Section>
          )}
          {result?.output != null && (
            <Section title={strings.triggers.output}>
              <Value value={result.output} label={strings.triggers.output} />
            </Section>
          )}
          <Section title={strings.triggers.input}>
            <Value value={input} label={strings.triggers.input} />
          </Section>
        </Page>
      )}
    </Loaded>
  )
}
