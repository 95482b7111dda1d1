import { Alert, Badge, Card, Group, Stack, Switch, Table, Text } from '@mantine/core'
import type { SystemProcess, SystemProject, SystemQueue } from '@muster/client'
import { getOrchestrationQueueStats, getSystemStatus } from '@muster/client/operations'
import { IconAlertTriangle, IconCircleCheck } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { api, every, POLL_MS } from '#api.ts'
import { FailingChecks } from '#components/failing-checks.tsx'
import { Figures } from '#components/figures.tsx'
import { useFilters } from '#components/filters.ts'
import { RecordLink, TableHead } from '#components/list.tsx'
import { Meter } from '#components/meter.tsx'
import { Page } from '#components/page.tsx'
import { Section } from '#components/record.tsx'
import { RecordPage } from '#components/record-page.tsx'
import { Loaded, Notice } from '#components/states.tsx'
import { durationText, elapsedText, visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId, useProjects } from '#projects.ts'
import * as strings from '#strings.ts'
import { Cells } from './cells.tsx'

const texts = strings.queue

/** Queues, slots, processes and cells of the deployment for admins; for others, the queue of the project. */
export function Queue() {
  const projectId = useProjectId()
  const isAdmin = usePermissions(projectId)(getSystemStatus)
  return (
    <Page title={strings.nav.queue} intro={isAdmin ? texts.intro : texts.projectIntro}>
      {isAdmin ? <Deployment /> : <ProjectQueue projectId={projectId} />}
    </Page>
  )
}

function Deployment() {
  const status = useQuery({
    queryKey: ['system', 'status'],
    queryFn: async ({ signal }) => getSystemStatus(api, {}, { signal }),
    refetchInterval: every(POLL_MS),
  })
  return (
    <>
      <Loaded query={status} operation={getSystemStatus}>
        {({ checks, queues, projects, processes, turns_per_minute, errors_per_minute }) => {
          const unserved = queues.filter(({ workers }) => workers === 0)
          const sum = (field: 'waiting' | 'active' | 'dead') => queues.reduce((total, queue) => total + queue[field], 0)
          const oldest = Math.max(0, ...queues.map(({ oldest_seconds }) => oldest_seconds))
          return (
            <>
              <FailingChecks checks={checks} />
              {unserved.length > 0 && (
                <Alert color="yellow" icon={<IconAlertTriangle />} title={texts.unserved(unserved.length)}>
                  <Text size="sm" lineClamp={2}>
                    {unserved.map(({ name }) => name).join(', ')}
                  </Text>
                </Alert>
              )}
              <Figures
                figures={[
                  {
                    label: texts.waiting,
                    value: sum('waiting').toLocaleString(),
                    note: oldest >= 1 && texts.oldest(elapsedText(oldest)),
                  },
                  { label: texts.active, value: sum('active').toLocaleString() },
                  { label: texts.dead, value: sum('dead').toLocaleString() },
                  {
                    label: texts.turns,
                    value: turns_per_minute.toLocaleString(),
                    note: errors_per_minute > 0 && texts.failed(errors_per_minute),
                  },
                ]}
              />
              <Queues queues={queues} />
              <Projects projects={projects} />
              <Processes processes={processes} />
            </>
          )
        }}
      </Loaded>
      <Cells />
    </>
  )
}

const isBusy = ({ waiting, delayed, active, dead }: SystemQueue): boolean => waiting + delayed + active + dead > 0

function Queues({ queues }: { queues: SystemQueue[] }) {
  const projectId = useProjectId()
  const { filters, setFilters } = useFilters()
  const shown = queues
    .filter(queue => filters.idle || isBusy(queue))
    .toSorted((one, other) => other.oldest_seconds - one.oldest_seconds || one.name.localeCompare(other.name))
  return (
    <Section
      title={texts.queues}
      actions={
        <Switch
          label={texts.showIdle(queues.length)}
          checked={Boolean(filters.idle)}
          onChange={event => setFilters({ idle: event.currentTarget.checked ? '1' : undefined })}
        />
      }
    >
      {shown.length === 0 ? (
        <Group gap="xs">
          <IconCircleCheck size={20} aria-hidden />
          <Text c="dimmed">{texts.noMessages}</Text>
        </Group>
      ) : (
        <Table className="rows" verticalSpacing="sm" aria-label={texts.queues}>
          <TableHead
            titles={[texts.name, texts.waiting, texts.oldestWaiting, texts.delayed, texts.slots, texts.dead]}
          />
          <Table.Tbody>
            {shown.map(({ name, waiting, delayed, active, dead, oldest_seconds, slots, workers }) => (
              <Table.Tr key={name}>
                <Table.Td>
                  <Group gap="xs">
                    <RecordLink to={`/p/${projectId}/queue/${encodeURIComponent(name)}`}>{name}</RecordLink>
                    {workers === 0 && (
                      <Badge color="red" variant="dot">
                        {texts.reasons.no_worker}
                      </Badge>
                    )}
                  </Group>
                </Table.Td>
                <Table.Td data-title={texts.waiting}>{waiting.toLocaleString()}</Table.Td>
                <Table.Td data-title={texts.oldestWaiting}>
                  {waiting > 0 ? elapsedText(oldest_seconds) : strings.none}
                </Table.Td>
                <Table.Td data-title={texts.delayed}>{delayed.toLocaleString()}</Table.Td>
                <Table.Td data-title={texts.slots}>
                  {texts.of(active, slots)}
                  {slots > 0 && <Meter used={active} limit={slots} label={texts.slotsOf(name)} />}
                </Table.Td>
                <Table.Td data-title={texts.dead}>
                  {dead > 0 ? (
                    <Badge color="orange" variant="dot">
                      {dead.toLocaleString()}
                    </Badge>
                  ) : (
                    0
                  )}
                </Table.Td>
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
      )}
    </Section>
  )
}

function Projects({ projects }: { projects: SystemProject[] }) {
  const { data } = useProjects()
  const nameOf = (id: string) => data?.data.find(project => project.id === id)?.name ?? id
  if (projects.length === 0) return null
  return (
    <Section title={texts.projects}>
      <Table className="rows" verticalSpacing="sm" aria-label={texts.projects}>
        <TableHead titles={[texts.project, texts.share, texts.waiting]} />
        <Table.Tbody>
          {projects.map(({ project_id, active, waiting, share }) => (
            <Table.Tr key={project_id}>
              <Table.Td w="40%">{visible(nameOf(project_id))}</Table.Td>
              <Table.Td data-title={texts.share}>
                {texts.of(active, share)}
                {share > 0 && <Meter used={active} limit={share} label={texts.shareOf(nameOf(project_id))} />}
              </Table.Td>
              <Table.Td data-title={texts.waiting}>{waiting.toLocaleString()}</Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Section>
  )
}

function Processes({ processes }: { processes: SystemProcess[] }) {
  return (
    <Section title={texts.processes}>
      <Table className="rows" verticalSpacing="sm" aria-label={texts.processes}>
        <TableHead titles={[texts.process, strings.version, strings.started, texts.heartbeat]} />
        <Table.Tbody>
          {processes.map(({ instance_id, kind, concerns, version, started_at, heartbeat_at, stale }) => (
            <Table.Tr key={`${kind} ${instance_id}`}>
              <Table.Td w="40%">
                <Text size="sm" className="mono">
                  {visible(instance_id)}
                </Text>
                <Text size="sm" c="dimmed">
                  {concerns.length > 0 ? concerns.join(', ') : texts.web}
                </Text>
              </Table.Td>
              <Table.Td data-title={strings.version}>{version ?? strings.none}</Table.Td>
              <Table.Td data-title={strings.started}>
                <When at={started_at} />
              </Table.Td>
              <Table.Td data-title={texts.heartbeat}>
                <Badge variant="dot" color={stale ? 'red' : 'teal'}>
                  {stale ? texts.stale : texts.alive} <When at={heartbeat_at} />
                </Badge>
              </Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Section>
  )
}

function ProjectQueue({ projectId }: { projectId: string }) {
  return (
    <RecordPage
      queryKey={['queue', 'stats', projectId]}
      get={getOrchestrationQueueStats}
      ids={{ project_id: projectId }}
      refetchInterval={every(POLL_MS)}
    >
      {({ queue_depth, claimed_tasks, oldest_queued_age_seconds, claim_latency_ms: { p50, p95 } }) => (
        <Stack gap="lg">
          <Figures
            figures={[
              { label: texts.waiting, value: queue_depth.toLocaleString() },
              { label: texts.active, value: claimed_tasks.toLocaleString() },
              {
                label: texts.oldestWaiting,
                value: oldest_queued_age_seconds === null ? strings.none : elapsedText(oldest_queued_age_seconds),
              },
              {
                label: texts.latency,
                value: p50 === null ? strings.none : durationText(p50),
                note: p95 !== null && texts.slowest(durationText(p95)),
              },
            ]}
          />
          {queue_depth + claimed_tasks === 0 && (
            <Notice icon={<IconCircleCheck />} title={texts.projectIdle} color="teal">
              {texts.projectIdleText}
            </Notice>
          )}
          <Card withBorder padding="md" radius="lg">
            <Text size="sm" c="dimmed">
              {texts.projectNote}
            </Text>
          </Card>
        </Stack>
      )}
    </RecordPage>
  )
}
