import { Badge, type BadgeProps, Stack, Text } from '@mantine/core'
import type { GuardrailEvaluation, StoredGuardrailEvaluation } from '@muster/client'
import { listGuardrailEvaluations } from '@muster/client/operations'
import { api } from '#api.ts'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { ChoiceField, type Column, ListView, RecordLink, useList } from './list.tsx'
import { visible, When } from './text.tsx'
import { Value } from './value.tsx'

const DECISIONS = ['execute', 'route_to_approval', 'tripwire', 'blocked'] as const

const COLOURS: Record<GuardrailEvaluation['decision'], BadgeProps> = {
  execute: { color: 'teal.9', variant: 'filled' },
  route_to_approval: { variant: 'default' },
  tripwire: { color: 'red.9', variant: 'filled' },
  blocked: { color: 'red.9', variant: 'filled' },
}

/** What a guardrail decided. */
export function Decision({ decision }: { decision: GuardrailEvaluation['decision'] }) {
  return <Badge {...COLOURS[decision]}>{strings.guardrails.decisions[decision]}</Badge>
}

/** Decisions on calls of a tool, or by a guardrail. */
export function Decisions({ of }: { of: { tool_id: string } | { guardrail_id: string } }) {
  const projectId = useProjectId()
  const list = useList<StoredGuardrailEvaluation>(
    ['guardrail-evaluations', projectId, of],
    async ({ decision }, bounds, signal) => {
      const chosen = DECISIONS.filter(each => each === decision)
      const args = { project_id: projectId, ...of, decision: chosen, ...bounds }
      return listGuardrailEvaluations(api, args, { signal }).page()
    },
  )
  const columns: Column<StoredGuardrailEvaluation>[] = [
    {
      title: strings.guardrails.call,
      isWide: true,
      cell: ({ tool, action, guardrail_id, guardrail_version, context_snapshot }) => (
        <Stack gap={4}>
          {'tool_id' in of ? (
            <RecordLink to={`/p/${projectId}/guardrails/${guardrail_id}`}>
              {strings.guardrails.version(guardrail_id, guardrail_version)}
            </RecordLink>
          ) : (
            <Text fw={600}>{visible([tool, action].filter(Boolean).join(', ') || strings.none)}</Text>
          )}
          {Object.keys(context_snapshot ?? {}).length > 0 && (
            <Value value={context_snapshot} label={strings.guardrails.snapshot} />
          )}
        </Stack>
      ),
    },
    { title: strings.guardrails.decision, cell: ({ decision }) => <Decision decision={decision} /> },
    { title: strings.guardrails.class, cell: row => row.class },
    { title: strings.memory.at, cell: ({ created_at }) => <When at={created_at} /> },
  ]
  return (
    <ListView
      label={strings.guardrails.decisionsTab}
      list={list}
      operation={listGuardrailEvaluations}
      columns={columns}
      fields={
        <ChoiceField
          name="decision"
          label={strings.guardrails.decision}
          choices={DECISIONS.map(value => ({ value, label: strings.guardrails.decisions[value] }))}
        />
      }
      empty={<Text c="dimmed">{strings.guardrails.emptyDecisions}</Text>}
    />
  )
}
