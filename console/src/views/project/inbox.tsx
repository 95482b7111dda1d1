import { Badge, Button, Card, Group, Stack, Text } from '@mantine/core'
import type { ExceptionEntry, SessionEntry } from '@muster/client'
import { acknowledgeException, listApprovals, resolveException } from '@muster/client/operations'
import { IconInbox } from '@tabler/icons-react'
import { useMutation, useQueryClient } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useEffect, useRef } from 'react'
import { api } from '#api.ts'
import { DraftScope } from '#components/draft.tsx'
import { useFilters } from '#components/filters.ts'
import { RecordLink } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { FailureAlert, Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { Approvals } from '#inbox/approvals.tsx'
import { FormCard } from '#inbox/forms.tsx'
import { Involved } from '#inbox/involved.tsx'
import { NoticesButton } from '#inbox/notices-form.tsx'
import { InboxSection } from '#inbox/section.tsx'
import { useApprovals, useAttention, useExceptions, useForms } from '#inbox/waiting.ts'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const SEVERITIES = ['critical', 'warning', 'info']

/** Puts the focus once on the item that the address names, as a notification does. */
function useNamedItem(): void {
  const { item } = useFilters().filters
  const focused = useRef('')
  useEffect(() => {
    if (!item || focused.current === item) return
    const shown = document.getElementById(`approval-${item}`) ?? document.getElementById(`exception-${item}`)
    if (!shown) return
    focused.current = item
    shown.focus()
  })
}

/** Items that wait for a person: approvals, forms, sessions and exceptions. */
export function Inbox() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  useNamedItem()
  const mayDecide = isAllowed(listApprovals)
  const approvals = useApprovals(projectId, 1)
  const forms = useForms(projectId)
  const sessions = useAttention(projectId)
  const exceptions = useExceptions(projectId)
  const failure = [forms, sessions, exceptions].find(({ error }) => error)?.error
  const isEmpty =
    (approvals.data?.total === 0 || mayDecide === false) &&
    [forms.data ?? [], sessions.data?.data ?? [], exceptions.data?.data ?? []].every(rows => rows.length === 0)
  return (
    <Page title={strings.nav.inbox} intro={strings.inbox.intro} actions={<NoticesButton projectId={projectId} />}>
      {isEmpty && (
        <Notice icon={<IconInbox />} title={strings.inbox.empty} color="teal">
          {strings.inbox.emptyText}
        </Notice>
      )}
      {failure && <FailureAlert error={failure} title={strings.failed.title} />}
      {mayDecide && <Approvals />}
      {forms.data && forms.data.length > 0 && (
        <InboxSection title={strings.inbox.forms} count={forms.data.length}>
          {forms.data.map(form => (
            <DraftScope key={form.id} value={form.id}>
              <FormCard form={form} />
            </DraftScope>
          ))}
        </InboxSection>
      )}
      {sessions.data && sessions.data.total > 0 && (
        <InboxSection title={strings.inbox.people} count={sessions.data.total}>
          {sessions.data.data.map(session => (
            <SessionCard key={session.id} session={session} />
          ))}
        </InboxSection>
      )}
      {exceptions.data && exceptions.data.total > 0 && (
        <InboxSection title={strings.inbox.exceptions} count={exceptions.data.total}>
          {exceptions.data.data
            .toSorted((one, other) => SEVERITIES.indexOf(one.severity) - SEVERITIES.indexOf(other.severity))
            .map(row => (
              <ExceptionCard key={row.id} row={row} />
            ))}
        </InboxSection>
      )}
    </Page>
  )
}

function SessionCard({ session }: { session: SessionEntry }) {
  const { id, project_id, name, attention } = session
  const to = `/p/${project_id}/sessions/${id}`
  return (
    <Card withBorder padding="md" radius="lg">
      <Group justify="space-between">
        <Stack gap={2} flex="1 1 240px">
          <RecordLink to={to}>{visible(name ?? strings.sessions.unnamed)}</RecordLink>
          <Involved entry={session} />
          <Text size="sm">{visible(attention?.reason ?? '')}</Text>
          <Text size="xs" c="dimmed" component="div">
            <When at={attention?.since} />
          </Text>
        </Stack>
        <Button component={Link} to={to} variant="default" size="xs">
          {strings.inbox.session}
        </Button>
      </Group>
    </Card>
  )
}

function ExceptionCard({ row }: { row: ExceptionEntry }) {
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
    <Card
      withBorder
      padding="md"
      radius="lg"
      component="article"
      id={`exception-${row.id}`}
      tabIndex={-1}
      aria-label={visible(row.title)}
    >
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
        <Involved entry={row} />
        {row.detail && <Value value={row.detail} label={visible(row.title)} />}
        {failure && <FailureAlert error={failure} />}
        <Group gap="sm">
          {row.status === 'open' && isAllowed(acknowledgeException) && (
            <Button size="xs" variant="default" loading={acknowledge.isPending} onClick={() => acknowledge.mutate()}>
              {strings.inbox.acknowledge}
            </Button>
          )}
          {isAllowed(resolveException) && (
            <Button size="xs" loading={resolve.isPending} onClick={() => resolve.mutate()}>
              {strings.inbox.resolve}
            </Button>
          )}
        </Group>
      </Stack>
    </Card>
  )
}
