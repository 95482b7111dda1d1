import { Alert, Badge, Button, Card, Checkbox, Group, Modal, Stack, Text, TextInput } from '@mantine/core'
import { useHotkeys, useInterval } from '@mantine/hooks'
import type { Approval, ApprovalEntry } from '@muster/client'
import { approveApproval, listApprovals } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import { api } from '#api.ts'
import { DraftScope, useDraft } from '#components/draft.tsx'
import { FieldChanges } from '#components/field-changes.tsx'
import { useFilters } from '#components/filters.ts'
import { Pages, pageOf } from '#components/list.tsx'
import { FailureAlert, Loaded } from '#components/states.tsx'
import { StatusBadge } from '#components/status.tsx'
import { TextButton, visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { DecisionContext, useApprovalContext } from './approval-context.tsx'
import { ArgumentsForm } from './arguments-form.tsx'
import { type PendingDecision, type Refusal, scopeOf, useDecisions } from './decide.ts'
import { Involved } from './involved.tsx'
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
      {({ data, total }) => (
        <>
          <ApprovalList
            rows={data.toSorted((one, other) => one.expires_at.localeCompare(other.expires_at))}
            total={total}
            mayDecide={isAllowed(approveApproval) === true}
          />
          {total > 0 && <Pages total={total} rows={ROWS} />}
        </>
      )}
    </Loaded>
  )
}

/** Focuses an approval of the list. */
const focusOn = (id: string) => document.getElementById(`approval-${id}`)?.focus()

/** The row that keys act on: a row that leaves the list gives its place to the next. */
function useCurrentRow(rows: ApprovalEntry[]) {
  const [current, setCurrent] = useState({ id: '', index: 0 })
  const found = rows.findIndex(({ id }) => id === current.id)
  const at = found >= 0 ? found : Math.max(0, Math.min(current.index, rows.length - 1))
  return {
    at,
    row: rows[at] as ApprovalEntry | undefined,
    setCurrent,
    goTo(index: number) {
      const next = Math.min(Math.max(index, 0), rows.length - 1)
      if (!rows[next]) return
      setCurrent({ id: rows[next].id, index: next })
      focusOn(rows[next].id)
    },
  }
}

function ApprovalList({ rows, total, mayDecide }: { rows: ApprovalEntry[]; total: number; mayDecide: boolean }) {
  const [selected, setSelected] = useState<string[]>([])
  const [rejected, setRejected] = useState<ApprovalEntry[] | null>(null)
  const [editedId, setEditedId] = useState<string | null>(null)
  const { pending, refused, decide, undo, dismiss } = useDecisions(useProjectId())
  const { at, row: current, setCurrent, goTo } = useCurrentRow(rows)
  const decisionOn = (id: string) => pending.find(each => each.rows.some(row => row.id === id))
  const open = rows.filter(({ id }) => !decisionOn(id))
  const edited = open.find(({ id }) => id === editedId)
  // The form of edited arguments decides on them.
  const selectable = open.filter(row => row !== edited)
  const chosen = selectable.filter(({ id }) => selected.includes(id))

  /** Decides, and goes to the next row that is still open. */
  const decideOn = (decided: ApprovalEntry[], terms: Omit<Parameters<typeof decide>[0], 'rows'>) => {
    decide({ rows: decided, ...terms })
    setSelected([])
    if (decided.some(({ id }) => id === editedId)) setEditedId(null)
    const isOpen = (row: ApprovalEntry) => !decided.includes(row) && open.includes(row)
    const from = Math.max(...decided.map(row => rows.indexOf(row)))
    const next = rows.findIndex((row, index) => index > from && isOpen(row))
    if (next >= 0) goTo(next)
  }
  /** Keys act on the list, never on what a dialog covers; while arguments are edited, their form decides. */
  const inList = (act: () => void) => (event: KeyboardEvent) => {
    if (!rejected && !(event.target as Element).closest('[aria-modal=true]')) act()
  }
  const onKey = (act: (row: ApprovalEntry) => void) =>
    inList(() => {
      if (mayDecide && !edited && current && !decisionOn(current.id)) act(current)
    })
  useHotkeys([
    ['j', inList(() => goTo(at + 1))],
    ['k', inList(() => goTo(at - 1))],
    ['a', onKey(row => decideOn([row], { status: 'approved' }))],
    ['r', onKey(row => setRejected([row]))],
    ['e', onKey(row => isEditable(row) && setEditedId(row.id))],
    ['u', inList(() => undo())],
  ])
  // Refused decisions remain on screen without approvals.
  if (total === 0 && refused.length === 0) return null
  return (
    <InboxSection title={strings.inbox.approvals} count={total}>
      {mayDecide && rows.length > 0 && (
        <Selection
          open={selectable}
          chosen={chosen}
          onSelect={setSelected}
          onApprove={() => decideOn(chosen, { status: 'approved' })}
          onReject={() => setRejected(chosen)}
        />
      )}
      {pending.length > 0 && (
        <Text size="sm" role="status">
          {strings.inbox.pending(pending.reduce((sum, each) => sum + each.rows.length, 0))}
        </Text>
      )}
      {refused.map(each => (
        <RefusedDecision key={each.row.id} refusal={each} onClose={() => dismiss(each.row.id)} />
      ))}
      {rows.map((row, index) => (
        <DraftScope key={row.id} value={scopeOf([row])}>
          <ApprovalCard
            row={row}
            isCurrent={index === at}
            isSelected={selected.includes(row.id)}
            isEdited={row === edited}
            decision={decisionOn(row.id)}
            mayDecide={mayDecide}
            onCurrent={() => setCurrent({ id: row.id, index })}
            onSelect={isOn => setSelected(isOn ? [...selected, row.id] : selected.filter(id => id !== row.id))}
            onEdit={isOn => setEditedId(isOn ? row.id : null)}
            onApprove={edits => decideOn([row], { status: 'approved', edited: edits })}
            onReject={() => setRejected([row])}
            onUndo={undo}
          />
        </DraftScope>
      ))}
      <RejectModal
        rows={rejected}
        onClose={() => setRejected(null)}
        onReject={(all, reason) => {
          setRejected(null)
          decideOn(all, { status: 'rejected', reason })
        }}
      />
    </InboxSection>
  )
}

/** Selection of several approvals, and the decision on them. */
function Selection({
  open,
  chosen,
  onSelect,
  onApprove,
  onReject,
}: {
  open: Approval[]
  chosen: Approval[]
  onSelect: (ids: string[]) => void
  onApprove: () => void
  onReject: () => void
}) {
  return (
    <Group justify="space-between" mih={36}>
      <Group gap="lg">
        <Checkbox
          label={strings.inbox.selectAll}
          checked={chosen.length > 0 && chosen.length === open.length}
          indeterminate={chosen.length > 0 && chosen.length < open.length}
          onChange={event => onSelect(event.currentTarget.checked ? open.map(({ id }) => id) : [])}
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
          <Button size="xs" onClick={onApprove}>
            {strings.inbox.approveMany}
          </Button>
          <Button size="xs" variant="default" onClick={onReject}>
            {strings.inbox.rejectMany}
          </Button>
        </Group>
      )}
    </Group>
  )
}

/** A decision that came too late or was refused: what the approval is. */
function RefusedDecision({ refusal: { row, error, current }, onClose }: { refusal: Refusal; onClose: () => void }) {
  const isDecided = current !== null && current.status !== 'pending'
  return (
    <Stack gap="xs">
      {isDecided ? (
        <Alert color="orange" role="alert" title={strings.inbox.conflict(nameOf(row))}>
          <Group gap="sm">
            <StatusBadge status={current.status} />
            <Text size="sm" component="div">
              <When at={current.updated_at} />
            </Text>
            {current.resolution_reason && <Text size="sm">{visible(current.resolution_reason)}</Text>}
          </Group>
        </Alert>
      ) : (
        <FailureAlert error={error} title={strings.inbox.refused(nameOf(row))} />
      )}
      <Group>
        <Button size="xs" variant="default" onClick={onClose}>
          {strings.inbox.dismiss}
        </Button>
      </Group>
    </Stack>
  )
}

/** Whether the arguments of the call can be edited. */
const isEditable = ({ proposed_action, origin }: Approval): boolean =>
  proposed_action?.arguments != null && origin !== 'task_transition'

function ApprovalCard({
  row,
  isCurrent,
  isSelected,
  isEdited,
  decision,
  mayDecide,
  onCurrent,
  onSelect,
  onEdit,
  onApprove,
  onReject,
  onUndo,
}: {
  row: ApprovalEntry
  isCurrent: boolean
  isSelected: boolean
  isEdited: boolean
  decision: PendingDecision | undefined
  mayDecide: boolean
  onCurrent: () => void
  onSelect: (isOn: boolean) => void
  onEdit: (isOn: boolean) => void
  onApprove: (edited?: Record<string, unknown>) => void
  onReject: () => void
  onUndo: (key: number) => void
}) {
  const context = useApprovalContext(row, isCurrent || isEdited)
  const proposed = row.proposed_action?.arguments ?? null
  const name = nameOf(row)
  return (
    <Card
      withBorder
      padding="md"
      radius="lg"
      id={`approval-${row.id}`}
      tabIndex={-1}
      // Focus by the pointer comes before its click, which would miss a button that another current row moves.
      onFocus={event => event.target.matches(':focus-visible') && onCurrent()}
      onClickCapture={onCurrent}
      component="article"
      aria-label={name}
      style={isCurrent ? { borderColor: 'var(--mantine-primary-color-filled)' } : undefined}
    >
      <Stack gap="sm">
        <Group gap="sm" wrap="nowrap" align="flex-start">
          {mayDecide && (
            <Checkbox
              checked={isSelected}
              disabled={decision !== undefined || isEdited}
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
        {isCurrent ? <DecisionContext row={row} query={context} /> : <Involved entry={row} />}
        {proposed &&
          (isEdited && !context.isLoading ? (
            <ArgumentsForm
              proposed={proposed}
              tool={context.data?.tool}
              onApprove={onApprove}
              onCancel={() => onEdit(false)}
            />
          ) : (
            <Value value={proposed} label={`${strings.inbox.arguments} ${name}`} />
          ))}
        {row.evidence && <Evidence evidence={row.evidence} name={name} />}
        <Decisions row={row} />
        {decision ? (
          <Undo decision={decision} proposed={proposed} onUndo={() => onUndo(decision.key)} />
        ) : (
          <Group gap="sm">
            {mayDecide && !isEdited && (
              <>
                <Button size="xs" onClick={() => onApprove()}>
                  {strings.inbox.approve}
                </Button>
                <Button size="xs" variant="default" onClick={onReject}>
                  {strings.inbox.reject}
                </Button>
                {isEditable(row) && (
                  <Button size="xs" variant="default" onClick={() => onEdit(true)}>
                    {strings.edit}
                  </Button>
                )}
              </>
            )}
            <WorkLinks row={row} />
          </Group>
        )}
      </Stack>
    </Card>
  )
}

/** Links to the run and the session of an approval. */
function WorkLinks({ row: { orchestration_run_id, session_id } }: { row: Approval }) {
  const projectId = useProjectId()
  return (
    <>
      {orchestration_run_id && (
        <Button component={Link} to={`/p/${projectId}/runs/${orchestration_run_id}`} size="xs" variant="default">
          {strings.inbox.run}
        </Button>
      )}
      {session_id && (
        <Button component={Link} to={`/p/${projectId}/sessions/${session_id}`} size="xs" variant="default">
          {strings.inbox.session}
        </Button>
      )}
    </>
  )
}

/** A decision that can be undone until it is sent. */
function Undo({
  decision: { status, reason, edited, due, isSent },
  proposed,
  onUndo,
}: {
  decision: PendingDecision
  proposed: Record<string, unknown> | null
  onUndo: () => void
}) {
  const left = () => Math.max(0, Math.ceil((due - Date.now()) / 1000))
  const [seconds, setSeconds] = useState(left)
  useInterval(() => setSeconds(left()), 250, { autoInvoke: true })
  return (
    <Stack gap="sm">
      {edited && <FieldChanges before={proposed} after={edited} />}
      {reason && (
        <Text size="sm">
          {strings.inbox.reason}: {visible(reason)}
        </Text>
      )}
      <Group gap="sm">
        <Text size="sm" aria-hidden={!isSent}>
          {isSent ? strings.inbox.sending : strings.inbox.sentIn(status, seconds)}
        </Text>
        {!isSent && (
          <Button size="xs" variant="default" onClick={onUndo}>
            {strings.inbox.undo}
          </Button>
        )}
      </Group>
    </Stack>
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

function RejectModal({
  rows,
  onClose,
  onReject,
}: {
  rows: ApprovalEntry[] | null
  onClose: () => void
  onReject: (rows: ApprovalEntry[], reason: string) => void
}) {
  return (
    <Modal opened={rows !== null} onClose={onClose} title={strings.inbox.reject}>
      {rows && (
        <DraftScope value={scopeOf(rows)}>
          <RejectForm onReject={reason => onReject(rows, reason)} />
        </DraftScope>
      )}
    </Modal>
  )
}

/** The reason of a rejection, which is kept until the rejection was sent. */
function RejectForm({ onReject }: { onReject: (reason: string) => void }) {
  const { value: reason, setValue: setReason } = useDraft('reason', '')
  return (
    <form
      onSubmit={event => {
        event.preventDefault()
        if (reason.trim()) onReject(reason.trim())
      }}
    >
      <Stack gap="md">
        <TextInput
          label={strings.inbox.reason}
          description={strings.inbox.reasonHelp}
          value={reason}
          onChange={event => setReason(event.currentTarget.value)}
          required
          data-autofocus
        />
        <Button type="submit">{strings.inbox.reject}</Button>
      </Stack>
    </form>
  )
}
