import { Badge, Button, Card, Checkbox, Group, JsonInput, Modal, Stack, Text, TextInput, Title } from '@mantine/core'
import { useHotkeys } from '@mantine/hooks'
import { notifications } from '@mantine/notifications'
import type { Approval, Exception, Session } from '@muster/client'
import {
  acknowledgeException,
  approveApproval,
  listApprovals,
  listExceptions,
  listSessions,
  rejectApproval,
  resolveApprovals,
  resolveException,
} from '@muster/client/operations'
import { IconInbox } from '@tabler/icons-react'
import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import { api, every } from '../api.ts'
import { RecordLink } from '../components/list.tsx'
import { Page } from '../components/page.tsx'
import { FailureAlert, Loaded, Notice } from '../components/states.tsx'
import { visible, When } from '../components/text.tsx'
import { Value } from '../components/value.tsx'
import { usePermissions, useProjectId } from '../projects.ts'
import { strings } from '../strings.ts'
import { parseObject } from './agent-form.tsx'

const POLL_MS = 5000
const ROWS = 100
const SEVERITIES = ['critical', 'warning', 'info']

/** What waits for a person: approvals, exceptions, and sessions that ask for one. */
export function Inbox() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const approvals = useQuery<Approval[]>({
    queryKey: ['approvals', projectId],
    queryFn: async ({ signal }) => {
      const args = { project_id: projectId, status: ['pending' as const], limit: ROWS }
      const { data } = await listApprovals(api, args, { signal }).page()
      return (data as Approval[]).toSorted((one, other) => one.expires_at.localeCompare(other.expires_at))
    },
    refetchInterval: every(POLL_MS),
  })
  const exceptions = useQuery<Exception[]>({
    queryKey: ['exceptions', projectId],
    queryFn: async ({ signal }) => {
      const args = { project_id: projectId, status: ['open' as const, 'acknowledged' as const], limit: ROWS }
      const { data } = await listExceptions(api, args, { signal }).page()
      // Sessions that ask for a person have a list of their own.
      return data
        .filter(({ kind }) => kind !== 'human_requested')
        .toSorted((one, other) => SEVERITIES.indexOf(one.severity) - SEVERITIES.indexOf(other.severity))
    },
    enabled: isAllowed('exceptions:ListExceptions') === true,
    refetchInterval: every(POLL_MS),
  })
  const sessions = useQuery<Session[]>({
    queryKey: ['sessions', projectId, 'attention'],
    queryFn: async ({ signal }) => {
      const args = { project_id: projectId, attention: true, limit: ROWS }
      return (await listSessions(api, args, { signal }).page()).data as Session[]
    },
    enabled: isAllowed('sessions:ListSessions') === true,
    refetchInterval: every(POLL_MS),
  })
  const isEmpty =
    approvals.data?.length === 0 && (exceptions.data ?? []).length === 0 && (sessions.data ?? []).length === 0
  return (
    <Page title={strings.nav.inbox} intro={strings.inbox.intro}>
      <Loaded query={approvals} action="approvals:ListApprovals">
        {rows => (
          <>
            {isEmpty && (
              <Notice icon={<IconInbox />} title={strings.inbox.empty} color="teal">
                {strings.inbox.emptyText}
              </Notice>
            )}
            {rows.length > 0 && <Approvals rows={rows} mayDecide={isAllowed('approvals:ResolveApproval') === true} />}
          </>
        )}
      </Loaded>
      {sessions.error && <FailureAlert error={sessions.error} title={strings.failed.title} />}
      {(sessions.data ?? []).length > 0 && (
        <Section title={strings.inbox.people} count={sessions.data?.length ?? 0}>
          {sessions.data?.map(({ id, name, attention }) => (
            <Card key={id} withBorder padding="md" radius="lg">
              <Group justify="space-between">
                <Stack gap={2} flex="1 1 240px">
                  <RecordLink to={`/p/${projectId}/sessions/${id}`}>
                    {visible(name ?? strings.sessions.unnamed)}
                  </RecordLink>
                  <Text size="sm">{visible(attention?.reason ?? '')}</Text>
                  <Text size="xs" c="dimmed" component="div">
                    <When at={attention?.since} />
                  </Text>
                </Stack>
                <Button component={Link} to={`/p/${projectId}/sessions/${id}`} variant="default" size="xs">
                  {strings.inbox.session}
                </Button>
              </Group>
            </Card>
          ))}
        </Section>
      )}
      {exceptions.error && <FailureAlert error={exceptions.error} title={strings.failed.title} />}
      {(exceptions.data ?? []).length > 0 && (
        <Section title={strings.inbox.exceptions} count={exceptions.data?.length ?? 0}>
          {exceptions.data?.map(row => (
            <ExceptionCard key={row.id} row={row} />
          ))}
        </Section>
      )}
    </Page>
  )
}

function Section({ title, count, children }: { title: string; count: number; children: React.ReactNode }) {
  return (
    <Stack gap="sm" component="section" aria-label={title}>
      <Group gap="sm">
        <Title order={2} size="h4">
          {title}
        </Title>
        <Badge variant="default">{count}</Badge>
      </Group>
      {children}
    </Stack>
  )
}

const nameOf = ({ title, proposed_action, task_transition }: Approval): string =>
  visible(title ?? proposed_action?.tool_name ?? task_transition ?? strings.inbox.approvals)

function Approvals({ rows, mayDecide }: { rows: Approval[]; mayDecide: boolean }) {
  const cache = useQueryClient()
  const [selected, setSelected] = useState<string[]>([])
  const [current, setCurrent] = useState(0)
  const [rejected, setRejected] = useState<string[] | null>(null)
  const chosen = selected.filter(id => rows.some(row => row.id === id))
  const at = Math.min(current, rows.length - 1)
  const refresh = () => cache.invalidateQueries({ queryKey: ['approvals'] })
  const approve = useMutation({
    mutationFn: async ({ id, edited }: { id: string; edited?: Record<string, unknown> }) =>
      approveApproval(api, { approval_id: id, ...(edited ? { arguments: edited } : {}) }),
    onSuccess: () => notifications.show({ message: strings.inbox.decided, color: 'teal' }),
    onSettled: refresh,
  })
  const approveMany = useMutation({
    mutationFn: async (ids: string[]) => resolveApprovals(api, { ids, decision: 'approved' }),
    onSuccess: () => setSelected([]),
    onSettled: refresh,
  })
  const move = (by: number) => {
    const next = Math.min(Math.max(at + by, 0), rows.length - 1)
    setCurrent(next)
    document.getElementById(`approval-${rows[next].id}`)?.focus()
  }
  useHotkeys([
    ['j', () => move(1)],
    ['k', () => move(-1)],
    ['a', () => mayDecide && approve.mutate({ id: rows[at].id })],
    ['r', () => mayDecide && setRejected([rows[at].id])],
  ])
  const failure = approve.error ?? approveMany.error
  return (
    <Section title={strings.inbox.approvals} count={rows.length}>
      {mayDecide && (
        <Group justify="space-between" mih={36}>
          <Text size="sm" c="dimmed" visibleFrom="sm">
            {strings.inbox.keys}
          </Text>
          {chosen.length > 0 && (
            <Group gap="sm">
              <Text size="sm" role="status">
                {strings.inbox.selected(chosen.length)}
              </Text>
              <Button size="xs" loading={approveMany.isPending} onClick={() => approveMany.mutate(chosen)}>
                {strings.inbox.approveMany}
              </Button>
              <Button size="xs" variant="default" onClick={() => setRejected(chosen)}>
                {strings.inbox.rejectMany}
              </Button>
            </Group>
          )}
        </Group>
      )}
      {failure && <FailureAlert error={failure} />}
      {rows.map((row, index) => (
        <ApprovalCard
          key={row.id}
          row={row}
          isCurrent={index === at}
          isPending={approve.isPending && approve.variables?.id === row.id}
          isSelected={chosen.includes(row.id)}
          mayDecide={mayDecide}
          onFocus={() => setCurrent(index)}
          onSelect={isOn => setSelected(isOn ? [...chosen, row.id] : chosen.filter(id => id !== row.id))}
          onApprove={edited => approve.mutate({ id: row.id, edited })}
          onReject={() => setRejected([row.id])}
        />
      ))}
      <RejectModal
        ids={rejected}
        onClose={() => setRejected(null)}
        onDone={() => {
          setRejected(null)
          setSelected([])
          void refresh()
        }}
      />
    </Section>
  )
}

function ApprovalCard({
  row,
  isCurrent,
  isPending,
  isSelected,
  mayDecide,
  onFocus,
  onSelect,
  onApprove,
  onReject,
}: {
  row: Approval
  isCurrent: boolean
  isPending: boolean
  isSelected: boolean
  mayDecide: boolean
  onFocus: () => void
  onSelect: (isOn: boolean) => void
  onApprove: (edited?: Record<string, unknown>) => void
  onReject: () => void
}) {
  const projectId = useProjectId()
  const proposed = row.proposed_action?.arguments ?? null
  const [edited, setEdited] = useState<string | null>(null)
  const parsed = edited === null ? null : parseObject(edited)
  const name = nameOf(row)
  return (
    <Card
      withBorder
      padding="md"
      radius="lg"
      id={`approval-${row.id}`}
      tabIndex={-1}
      onFocus={onFocus}
      component="article"
      aria-label={name}
      style={isCurrent ? { borderColor: 'var(--mantine-primary-color-filled)' } : undefined}
    >
      <Stack gap="sm">
        <Group gap="sm" wrap="nowrap" align="flex-start">
          {mayDecide && (
            <Checkbox
              checked={isSelected}
              onChange={event => onSelect(event.currentTarget.checked)}
              aria-label={strings.inbox.select(name)}
            />
          )}
          <Stack gap={2} flex={1} miw={0}>
            <Group gap="sm">
              <Text fw={600}>{name}</Text>
              <Badge variant="default">{strings.inbox.origin[row.origin]}</Badge>
            </Group>
            <Text size="sm" c="dimmed" component="div">
              {strings.inbox.expires} <When at={row.expires_at} />
            </Text>
          </Stack>
        </Group>
        {row.reasoning && (
          <Text size="sm">
            {strings.inbox.why}: {visible(row.reasoning)}
          </Text>
        )}
        {row.predicted_impact && (
          <Text size="sm">
            {strings.inbox.impact}: {visible(row.predicted_impact)}
          </Text>
        )}
        {proposed && edited === null && <Value value={proposed} label={`${strings.inbox.arguments} ${name}`} />}
        {edited !== null && (
          <JsonInput
            label={strings.inbox.arguments}
            description={strings.inbox.argumentsHelp}
            value={edited}
            onChange={setEdited}
            error={parsed ? null : strings.inbox.wrongJson}
            autosize
            minRows={4}
            maxRows={20}
          />
        )}
        <Group gap="sm">
          {mayDecide && (
            <>
              <Button
                size="xs"
                loading={isPending}
                disabled={edited !== null && !parsed}
                onClick={() => onApprove(parsed ?? undefined)}
              >
                {edited === null ? strings.inbox.approve : strings.inbox.approveEdited}
              </Button>
              <Button size="xs" variant="default" onClick={onReject}>
                {strings.inbox.reject}
              </Button>
              {proposed && row.origin !== 'task_transition' && (
                <Button
                  size="xs"
                  variant="default"
                  onClick={() => setEdited(edited === null ? JSON.stringify(proposed, null, 2) : null)}
                >
                  {edited === null ? strings.agents.edit : strings.cancel}
                </Button>
              )}
            </>
          )}
          {row.session_id && (
            <Button component={Link} to={`/p/${projectId}/sessions/${row.session_id}`} size="xs" variant="default">
              {strings.inbox.session}
            </Button>
          )}
        </Group>
      </Stack>
    </Card>
  )
}

function RejectModal({ ids, onClose, onDone }: { ids: string[] | null; onClose: () => void; onDone: () => void }) {
  const [reason, setReason] = useState('')
  const reject = useMutation({
    mutationFn: async (all: string[]): Promise<unknown> => {
      const why = reason.trim() ? { reason: reason.trim() } : {}
      return all.length === 1
        ? rejectApproval(api, { approval_id: all[0], ...why })
        : resolveApprovals(api, { ids: all, decision: 'rejected', ...why })
    },
    onSuccess: () => {
      setReason('')
      onDone()
    },
  })
  return (
    <Modal opened={ids !== null} onClose={onClose} title={strings.inbox.reject}>
      <form
        onSubmit={event => {
          event.preventDefault()
          if (ids) reject.mutate(ids)
        }}
      >
        <Stack gap="md">
          <TextInput
            label={strings.inbox.reason}
            description={strings.inbox.reasonHelp}
            value={reason}
            onChange={event => setReason(event.currentTarget.value)}
            data-autofocus
          />
          {reject.error && <FailureAlert error={reject.error} />}
          <Button type="submit" loading={reject.isPending}>
            {strings.inbox.reject}
          </Button>
        </Stack>
      </form>
    </Modal>
  )
}

function ExceptionCard({ row }: { row: Exception }) {
  const cache = useQueryClient()
  const isAllowed = usePermissions(useProjectId())
  const onSettled = () => cache.invalidateQueries({ queryKey: ['exceptions'] })
  const acknowledge = useMutation({
    mutationFn: async () => acknowledgeException(api, { exception_id: row.id }),
    onSettled,
  })
  const resolve = useMutation({
    mutationFn: async () => resolveException(api, { exception_id: row.id }),
    onSettled,
  })
  const failure = acknowledge.error ?? resolve.error
  return (
    <Card withBorder padding="md" radius="lg" component="article" aria-label={visible(row.title)}>
      <Stack gap="sm">
        <Group gap="sm">
          <Badge variant={row.severity === 'critical' ? 'filled' : 'default'} color="red.9">
            {row.severity}
          </Badge>
          <Text fw={600}>{visible(row.title)}</Text>
          {row.occurrence_count > 1 && (
            <Text size="sm" c="dimmed">
              {strings.inbox.times(row.occurrence_count)}
            </Text>
          )}
          <Text size="sm" c="dimmed" component="div">
            <When at={row.last_seen_at} />
          </Text>
        </Group>
        {row.detail && <Value value={row.detail} label={visible(row.title)} />}
        {failure && <FailureAlert error={failure} />}
        <Group gap="sm">
          {row.status === 'open' && isAllowed('exceptions:AcknowledgeException') && (
            <Button size="xs" variant="default" loading={acknowledge.isPending} onClick={() => acknowledge.mutate()}>
              {strings.inbox.acknowledge}
            </Button>
          )}
          {isAllowed('exceptions:ResolveException') && (
            <Button size="xs" loading={resolve.isPending} onClick={() => resolve.mutate()}>
              {strings.inbox.resolve}
            </Button>
          )}
        </Group>
      </Stack>
    </Card>
  )
}
