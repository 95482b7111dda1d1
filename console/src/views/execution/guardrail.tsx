import evaluateFields from 'fields:evaluateGuardrail'
import { Badge, Group, Select, Stack, Text } from '@mantine/core'
import type { Guardrail, GuardrailEvaluateInput } from '@muster/client'
import {
  compareGuardrailVersions,
  deleteGuardrail,
  evaluateGuardrail,
  getAgent,
  getGuardrail,
  getProject,
  getTool,
  listAgents,
  listGuardrailEvaluations,
  listGuardrailVersions,
  listTools,
  restoreGuardrailVersion,
  updateAgent,
  updateGuardrail,
  updateProject,
  updateTool,
} from '@muster/client/operations'
import { IconEdit } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { useState } from 'react'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import { ActionButton, FormButton, useAction } from '#components/actions.tsx'
import { Decision, Decisions } from '#components/decisions.tsx'
import type { Read } from '#components/guarded-save.tsx'
import { RecordLink } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Facts, IdLine, LabelledValues, Section, type Tab } from '#components/record.tsx'
import { RemoveButton } from '#components/record-page.tsx'
import { SchemaForm, SubmitRow } from '#components/schema-form.tsx'
import { Loaded } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { Versions } from '#components/versions.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { GuardrailForm, readGuardrail } from './guardrail-form.tsx'

const texts = strings.guardrails

const guardrailKey = (id: string) => ['guardrail', id]

/** Agents and tools that are read to find those with a guardrail. */
const READ_MAX = 1000

/** A guardrail: its rules, a trial of them, where it applies, and its decisions. */
export function GuardrailView() {
  const { guardrailId } = useIds()
  const guardrail = useQuery<Read<Guardrail>>({
    queryKey: guardrailKey(guardrailId),
    queryFn: ({ signal }) => readGuardrail(guardrailId, signal),
  })
  return (
    <Loaded query={guardrail} operation={getGuardrail}>
      {({ record, etag }) => <GuardrailPage guardrail={record} etag={etag} />}
    </Loaded>
  )
}

function GuardrailPage({ guardrail, etag }: { guardrail: Guardrail; etag: string | null }) {
  const { id, project_id, version } = guardrail
  const isAllowed = usePermissions(project_id)
  const stale = [guardrailKey(id), ['guardrails', project_id]]
  const tabs: Tab[] = [{ value: 'rules', title: texts.rules, content: () => <Rules guardrail={guardrail} /> }]
  if (isAllowed(evaluateGuardrail))
    tabs.push({ value: 'try', title: texts.try, content: () => <Trial guardrail={guardrail} /> })
  tabs.push({
    value: 'attached',
    title: texts.attached,
    content: () => <Attachments guardrail={guardrail} />,
  })
  if (isAllowed(listGuardrailEvaluations))
    tabs.push({
      value: 'decisions',
      title: texts.decisionsTab,
      content: () => <Decisions of={{ guardrail_id: id }} />,
    })
  if (isAllowed(listGuardrailVersions))
    tabs.push({
      value: 'versions',
      title: strings.versions,
      content: () => (
        <Versions
          queryKey={guardrailKey(id)}
          current={version}
          ids={{ guardrail_id: id }}
          stale={stale}
          operations={{
            list: listGuardrailVersions,
            compare: compareGuardrailVersions,
            restore: restoreGuardrailVersion,
          }}
        />
      ),
    })
  return (
    <Page
      title={guardrail.name}
      intro={guardrail.description && visible(guardrail.description)}
      actions={
        <>
          <RemoveButton
            operation={deleteGuardrail}
            ids={{ guardrail_id: id }}
            question={texts.deleteText}
            stale={stale.slice(1)}
            list="guardrails"
          />
          {isAllowed(updateGuardrail) && (
            <FormButton
              label={strings.edit}
              leftSection={<IconEdit size={16} />}
              modalSize="xl"
              form={close => <GuardrailForm first={{ record: guardrail, etag }} onDone={close} onCancel={close} />}
            />
          )}
        </>
      }
    >
      <AddressTabs tabs={tabs} />
    </Page>
  )
}

/** An expression as JSON; a letter with its meaning. */
function Rule({ title, value }: { title: string; value: unknown }) {
  if (value === undefined || value === null) return null
  return (
    <Stack gap={4}>
      <Text size="sm" c="dimmed">
        {title}
      </Text>
      {typeof value === 'string' ? (
        <Text>
          {visible(value)} {texts.classes[value] ?? ''}
        </Text>
      ) : (
        <Value value={value} label={title} />
      )}
    </Stack>
  )
}

function Rules({ guardrail }: { guardrail: Guardrail }) {
  const rules = guardrail.document as Record<string, unknown>
  const { class: own, guard, default_class, escalate, expires_in, forbid_self_approval, approver } = rules
  const flag = (value: unknown) => value !== undefined && (value ? strings.tools.yes : strings.tools.no)
  return (
    <Section title={texts.rules}>
      <Rule title={texts.class} value={own} />
      <Rule title={texts.guard} value={guard} />
      <Rule title={texts.defaultClass} value={default_class} />
      <Facts
        facts={[
          [texts.escalate, flag(escalate)],
          [texts.expiresIn, expires_in !== undefined && texts.seconds(Number(expires_in))],
          [texts.noSelf, flag(forbid_self_approval)],
          [texts.approver, approver ? visible(String(approver)) : undefined],
          [strings.version, guardrail.version],
          [strings.updated, <When key="updated" at={guardrail.updated_at} />],
        ]}
      />
      <IdLine id={guardrail.id} />
    </Section>
  )
}

function Trial({ guardrail }: { guardrail: Guardrail }) {
  const evaluate = useAction({
    run: async (values: GuardrailEvaluateInput) => evaluateGuardrail(api, { ...values, guardrail_id: guardrail.id }),
  })
  const verdict = evaluate.data
  return (
    <Stack gap="lg">
      <Section title={texts.try}>
        <Text c="dimmed">{texts.tryText}</Text>
        <SchemaForm
          schema={evaluateFields}
          start={{ args: {} }}
          submitLabel={texts.evaluate}
          isPending={evaluate.isPending}
          error={evaluate.error}
          onSubmit={evaluate.mutate}
        />
      </Section>
      {verdict && (
        <Section title={texts.verdict}>
          <Group gap="sm" role="status">
            <Decision decision={verdict.decision} />
            <Text>{texts.decisionText[verdict.decision]}</Text>
          </Group>
          <Facts
            facts={[
              [
                texts.class,
                <span key="class">
                  {verdict.class} {texts.classes[verdict.class]}
                </span>,
              ],
              [
                texts.guard,
                verdict.guard_result === null ? texts.notEvaluated : verdict.guard_result ? texts.held : texts.failed,
              ],
              [texts.contextFrom, texts.contextSources[verdict.context_source]],
            ]}
          />
          <LabelledValues values={[[texts.snapshot, verdict.context_snapshot]]} />
        </Section>
      )}
    </Stack>
  )
}

type Target = { kind: 'project' | 'agent' | 'tool'; id: string; name: string; guardrail_ids: string[] }

/** Changes the guardrails of a record as currently shown; a change by another meanwhile is refused. */
async function changeGuardrails({ kind, id }: Target, change: (ids: string[]) => string[]): Promise<unknown> {
  const idsOf = (record: object) => change((record as { guardrail_ids?: string[] | null }).guardrail_ids ?? [])
  if (kind === 'agent') {
    const { data, etag } = await getAgent(api, { agent_id: id }).withResponse()
    return updateAgent(api, { agent_id: id, guardrail_ids: idsOf(data) }, { ifMatch: etag ?? undefined })
  }
  if (kind === 'tool') {
    const { data, etag } = await getTool(api, { tool_id: id }).withResponse()
    return updateTool(api, { tool_id: id, guardrail_ids: idsOf(data) }, { ifMatch: etag ?? undefined })
  }
  const { data, etag } = await getProject(api, { project_id: id }).withResponse()
  return updateProject(api, { project_id: id, guardrail_ids: idsOf(data) }, { ifMatch: etag ?? undefined })
}

function useTargets(projectId: string) {
  const isAllowed = usePermissions(projectId)
  const may = {
    agents: isAllowed(listAgents) === true,
    tools: isAllowed(listTools) === true,
    project: isAllowed(getProject) === true,
  }
  return useQuery<Target[]>({
    queryKey: ['guardrail-targets', projectId, may],
    queryFn: async ({ signal }) => {
      const args = { project_id: projectId }
      const [project, agents, tools] = await Promise.all([
        may.project ? getProject(api, args, { signal }) : null,
        may.agents ? listAgents(api, args, { signal }).all({ max: READ_MAX }) : [],
        may.tools ? listTools(api, args, { signal }).all({ max: READ_MAX }) : [],
      ])
      const target = (kind: Target['kind'], { id, name, guardrail_ids }: Listed): Target => ({
        kind,
        id,
        name: name ?? strings.agents.unnamed,
        guardrail_ids: guardrail_ids ?? [],
      })
      return [
        ...(project ? [target('project', project as Listed)] : []),
        ...agents.map(agent => target('agent', agent)),
        ...tools.map(tool => target('tool', tool)),
      ]
    },
  })
}

type Listed = { id: string; name: string | null; guardrail_ids?: string[] | null }

/** Where a guardrail applies. */
function Attachments({ guardrail: { id, project_id } }: { guardrail: Guardrail }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(project_id)
  const targets = useTargets(project_id)
  const stale = [['guardrail-targets', project_id], ['agents'], ['agent'], ['tools'], ['tool']]
  const mayChange = {
    project: isAllowed(updateProject) === true,
    agent: isAllowed(updateAgent) === true,
    tool: isAllowed(updateTool) === true,
  }
  return (
    <Loaded query={targets}>
      {all => {
        const attached = all.filter(({ guardrail_ids }) => guardrail_ids.includes(id))
        const free = all.filter(({ kind, guardrail_ids }) => mayChange[kind] && !guardrail_ids.includes(id))
        return (
          <Section
            title={texts.attached}
            actions={
              free.length > 0 && (
                <FormButton
                  label={texts.attach}
                  size="xs"
                  form={close => <AttachForm id={id} free={free} stale={stale} onDone={close} />}
                />
              )
            }
          >
            {attached.length === 0 && <Text c="dimmed">{texts.nowhere}</Text>}
            {attached.map(target => (
              <Group key={target.id} justify="space-between" gap="sm">
                <Group gap="sm">
                  <Badge variant="default">{texts.kinds[target.kind]}</Badge>
                  {target.kind === 'project' ? (
                    <Text fw={600}>{visible(target.name)}</Text>
                  ) : (
                    <RecordLink to={`/p/${projectId}/${target.kind}s/${target.id}`}>{visible(target.name)}</RecordLink>
                  )}
                </Group>
                {mayChange[target.kind] && isAllowed({ action: 'guardrails:DetachGuardrail' }) && (
                  <ActionButton
                    label={texts.detach}
                    question={texts.detachText(visible(target.name))}
                    run={() => changeGuardrails(target, ids => ids.filter(each => each !== id))}
                    stale={stale}
                  />
                )}
              </Group>
            ))}
          </Section>
        )
      }}
    </Loaded>
  )
}

function AttachForm({
  id,
  free,
  stale,
  onDone,
}: {
  id: string
  free: Target[]
  stale: string[][]
  onDone: () => void
}) {
  const [chosen, setChosen] = useState<string | null>(null)
  const target = free.find(each => each.id === chosen)
  const attach = useAction({
    run: async (to: Target) => changeGuardrails(to, ids => [...ids, id]),
    stale,
    onDone,
  })
  return (
    <form
      onSubmit={event => {
        event.preventDefault()
        if (target) attach.mutate(target)
      }}
    >
      <Stack gap="md">
        <Select
          label={texts.attachTo}
          description={texts.attachHelp}
          data={free.map(({ kind, id: value, name }) => ({
            value,
            label: `${texts.kinds[kind]}: ${visible(name)}`,
          }))}
          value={chosen}
          onChange={setChosen}
          searchable
          required
          nothingFoundMessage={strings.nothingFound}
          data-autofocus
        />
        <SubmitRow label={texts.attach} isPending={attach.isPending} error={attach.error} onCancel={onDone} />
      </Stack>
    </form>
  )
}
