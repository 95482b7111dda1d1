import { Badge, Button, Card, Checkbox, Group, JsonInput, Modal, Stack, Text, TextInput } from '@mantine/core'
import { useHotkeys } from '@mantine/hooks'
import { notifications } from '@mantine/notifications'
import type { Approval } from '@muster/client'
import { approveApproval, listApprovals, rejectApproval, resolveApprovals } from '@muster/client/operations'
import { useMutation, useQuery, useQueryClient } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import { api } from '#api.ts'
import { FieldChanges } from '#components/field-changes.tsx'
import { useFilters } from '#components/filters.ts'
import { Pages, pageOf } from '#components/list.tsx'
import { parseObject } from '#components/schema-form.tsx'
import { FailureAlert, Loaded } from '#components/states.tsx'
import { StatusBadge } from '#components/status.tsx'
import { TextButton, visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { InboxSection } from './section.tsx'
import { ROWS, useApprovals } from './waiting.ts'

/** Decisions that are searched for earlier ones of the same kind, and those that are shown. */
const DECISIONS = 100
const SHOWN_DECISIONS = 5

const nameOf = ({ title, proposed_action, task_transition }: Approval): string =>
  visible(title ?? proposed_action?.tool_name ?? task_transition ?? strings.inbox.approvals)

/** The approvals that wait for a decision, page by page. */
export function Approvals() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { filters } = useFilters()
  const approvals = useApprovals(projectId, pageOf(filters))
  return (
    <Loaded query={approvals} operation={listApprovals}>
      {({ data, total }) =>
        total > 0 && (
          <>
            {data.length > 0 && (
              <ApprovalList
                rows={data.toSorted((one, other) => one.expires_at.localeCompare(other.expires_at))}
                total={total}
                mayDecide={isAllowed(approveApproval) === true}
              />
            )}
            <Pages total={total} rows={ROWS} />
          </>
        )
      }
    </Loaded>
  )
}

function ApprovalList({ rows, total, mayDecide }: { rows: Approval[]; total: number; mayDecide: boolean }) {
  const cache = useQueryClient()
  const [selected, setSelected] = useState<string[]>([])
  const [current, setCurrent] = useState({ id: '', index: 0 })
  const [rejected, setRejected] = useState<string[] | null>(null)
  const chosen = selected.filter(id => rows.some(row => row.id === id))
  // Rows that are decided leave the list: the row counts, and its place only once it is gone.
  const found = rows.findIndex(({ id }) => id === current.id)
  const at = found >= 0 ? found : Math.min(current.index, rows.length - 1)
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
    setCurrent({ id: rows[next].id, index: next })
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
    <InboxSection title={strings.inbox.approvals} count={total}>
      {mayDecide && (
        <Group justify="space-between" mih={36}>
          <Group gap="lg">
            <Checkbox
              label={strings.inbox.selectAll}
              checked={chosen.length === rows.length}
              indeterminate={chosen.length > 0 && chosen.length < rows.length}
              onChange={event => setSelected(event.currentTarget.checked ? rows.map(({ id }) => id) : [])}
            />
            <Text size="sm" c="dimmed" visibleFrom="sm">
              {strings.inbox.keys}
            </Text>
          </Group>
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
          onFocus={() => setCurrent({ id: row.id, index })}
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
    </InboxSection>
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
              {row.previous_item_id && <Badge variant="default">{strings.inbox.rejectedBefore}</Badge>}
            </Group>
            <Text size="sm" c="dimmed" component="div">
              {strings.expires} <When at={row.expires_at} />
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
        {parsed && <FieldChanges before={proposed} after={parsed} />}
        {row.evidence && <Evidence evidence={row.evidence} name={name} />}
        <Decisions row={row} />
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
                  {edited === null ? strings.edit : strings.cancel}
                </Button>
              )}
            </>
          )}
          {row.orchestration_run_id && (
            <Button
              component={Link}
              to={`/p/${projectId}/runs/${row.orchestration_run_id}`}
              size="xs"
              variant="default"
            >
              {strings.inbox.run}
            </Button>
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

function Evidence({ evidence, name }: { evidence: Record<string, unknown>; name: string }) {
  const [isOpen, setOpen] = useState(false)
  return (
    <Stack gap={4}>
      <TextButton onClick={() => setOpen(!isOpen)}>
        {isOpen ? strings.inbox.hideEvidence : strings.inbox.evidence}
      </TextButton>
      {isOpen && <Value value={evidence} label={`${strings.inbox.evidence} ${name}`} />}
    </Stack>
  )
}

/** Whether two approvals decide on the same kind of action. */
const isSameKind = (one: Approval, other: Approval): boolean =>
  one.origin === other.origin &&
  one.task_transition === other.task_transition &&
  one.proposed_action?.tool_name === other.proposed_action?.tool_name &&
  one.proposed_action?.action === other.proposed_action?.action

/** Earlier decisions of the same kind, read on request. */
function Decisions({ row }: { row: Approval }) {
  const [isOpen, setOpen] = useState(false)
  const decisions = useQuery<Approval[]>({
    queryKey: ['decisions', row.project_id, row.id],
    queryFn: async ({ signal }) => {
      const args = {
        project_id: row.project_id,
        status: ['approved' as const, 'rejected' as const, 'expired' as const],
        origin: [row.origin],
        agent_id: row.agent_id ?? undefined,
        limit: DECISIONS,
      }
      const { data } = await listApprovals(api, args, { signal }).page()
      return (data as Approval[]).filter(each => isSameKind(each, row)).slice(0, SHOWN_DECISIONS)
    },
    enabled: isOpen,
  })
  return (
    <Stack gap={4}>
      <TextButton onClick={() => setOpen(!isOpen)}>
        {isOpen ? strings.inbox.hideDecisions : strings.inbox.decisions}
      </TextButton>
      {isOpen && (
        <Loaded query={decisions} operation={listApprovals} rows={1}>
          {rows =>
            rows.length === 0 ? (
              <Text size="sm" c="dimmed">
                {strings.inbox.noDecisions}
              </Text>
            ) : (
              <Stack gap="sm">
                {rows.map(decision => (
                  <Stack gap={4} key={decision.id}>
                    <Group gap="sm">
                      <StatusBadge status={decision.status} />
                      <Text size="sm" c="dimmed" component="div">
                        <When at={decision.updated_at} />
                      </Text>
                      {decision.resolution_reason && <Text size="sm">{visible(decision.resolution_reason)}</Text>}
                    </Group>
                    <Text size="sm" c="dimmed">
                      {strings.inbox.compared}
                    </Text>
                    <FieldChanges
                      before={row.proposed_action?.arguments ?? {}}
                      after={decision.edited_arguments ?? decision.proposed_action?.arguments ?? {}}
                    />
                  </Stack>
                ))}
              </Stack>
            )
          }
        </Loaded>
      )}
    </Stack>
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
