import { Anchor, Badge, Group, Select, Stack, Text } from '@mantine/core'
import { MusterError, type Tool, type ToolAction, type ToolProjection } from '@muster/client'
import {
  callTool,
  deleteTool,
  getTool,
  listAgents,
  listGuardrailEvaluations,
  listShares,
  listToolActions,
  updateTool,
} from '@muster/client/operations'
import { IconEdit } from '@tabler/icons-react'
import { useMutation, useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import { useIds } from '#address.ts'
import { api } from '#api.ts'
import { useGuardrails } from '#choices.ts'
import { FormButton } from '#components/actions.tsx'
import { Decisions } from '#components/decisions.tsx'
import type { Read } from '#components/guarded-save.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Facts, IdLine, Section, type Tab } from '#components/record.tsx'
import { RemoveButton } from '#components/record-page.tsx'
import { type ObjectSchema, SchemaForm, type Values } from '#components/schema-form.tsx'
import { Shares } from '#components/shares.tsx'
import { Loaded } from '#components/states.tsx'
import { durationText, visible, When } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { readTool, ToolForm } from './tool-form.tsx'

const texts = strings.tools

const toolKey = (id: string) => ['tool', id]

/** A tool: its record, a call of it, the decisions on its calls, and its shares. */
export function ToolView() {
  const { toolId } = useIds()
  const tool = useQuery<Read<Tool | ToolProjection>>({
    queryKey: toolKey(toolId),
    queryFn: ({ signal }) => readTool(toolId, signal),
  })
  return (
    <Loaded query={tool} operation={getTool}>
      {({ record, etag }) =>
        'project_id' in record ? <ToolPage tool={record} etag={etag} /> : <SharedTool tool={record} />
      }
    </Loaded>
  )
}

/** A tool of another project, of which only the face is visible. */
function SharedTool({ tool }: { tool: ToolProjection }) {
  return (
    <Page title={tool.name} intro={tool.description && visible(tool.description)}>
      <Section title={texts.parameters}>
        <Value value={tool.parameters ?? {}} label={texts.parameters} />
      </Section>
    </Page>
  )
}

function ToolPage({ tool, etag }: { tool: Tool; etag: string | null }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const tabs: Tab[] = [{ value: 'record', title: strings.record, content: () => <Record tool={tool} /> }]
  if (isAllowed(callTool) && tool.type !== 'client')
    tabs.push({ value: 'call', title: texts.call, content: () => <Caller tool={tool} /> })
  if (isAllowed(listGuardrailEvaluations))
    tabs.push({
      value: 'decisions',
      title: strings.guardrails.decisionsTab,
      content: () => <Decisions of={{ tool_id: tool.id }} />,
    })
  if (isAllowed(listShares))
    tabs.push({
      value: 'shares',
      title: strings.shares.title,
      content: () => <Shares resource={`srn:${tool.project_id}:tool:${tool.id}`} />,
    })
  tabs.push({
    value: 'json',
    title: strings.json,
    content: () => <Value value={tool} label={strings.json} />,
  })
  return (
    <Page
      title={tool.name}
      intro={tool.description && visible(tool.description)}
      actions={
        <>
          <RemoveButton
            operation={deleteTool}
            ids={{ tool_id: tool.id }}
            question={texts.deleteText}
            stale={[['tools', projectId]]}
            list="tools"
          />
          {isAllowed(updateTool) && (
            <FormButton
              label={strings.edit}
              leftSection={<IconEdit size={16} />}
              modalSize="xl"
              form={close => <ToolForm first={{ record: tool, etag }} onDone={close} onCancel={close} />}
            />
          )}
        </>
      }
    >
      <AddressTabs tabs={tabs} />
    </Page>
  )
}

function Record({ tool }: { tool: Tool }) {
  const { execute, mcp } = tool
  const isPreset = Object.keys(tool.preset_parameters ?? {}).length > 0
  return (
    <Stack gap="lg">
      <Section title={strings.record}>
        <Facts
          facts={[
            [texts.type, texts.types[tool.type]],
            [texts.idempotent, tool.idempotent ? texts.yes : texts.no],
            [strings.created, <When key="created" at={tool.created_at} />],
            [strings.updated, <When key="updated" at={tool.updated_at} />],
          ]}
        />
        {(execute ?? mcp) && (
          <Text component="div">
            {execute && <Badge variant="default">{execute.method ?? 'POST'}</Badge>}{' '}
            <span className="mono">{visible((execute ?? mcp)?.url ?? '')}</span>
          </Text>
        )}
        <IdLine id={tool.id} />
      </Section>
      {tool.parameters && (
        <Section title={texts.parameters}>
          <Value value={tool.parameters} label={texts.parameters} />
        </Section>
      )}
      {(tool.type === 'mcp' || tool.type === 'platform') && (
        <Section title={texts.actions}>
          <Actions tool={tool} />
        </Section>
      )}
      {tool.pipeline && (
        <Section title={texts.pipeline}>
          <Value value={tool.pipeline} label={texts.pipeline} />
        </Section>
      )}
      {isPreset && (
        <Section title={texts.presets}>
          <Value value={tool.preset_parameters} label={texts.presets} />
        </Section>
      )}
      <Judges tool={tool} />
      <Users tool={tool} />
    </Stack>
  )
}

const useActions = (tool: Tool) =>
  useQuery<ToolAction[]>({
    queryKey: [...toolKey(tool.id), 'actions'],
    queryFn: async ({ signal }) => listToolActions(api, { tool_id: tool.id }, { signal }).all({ max: 500 }),
    enabled: tool.type === 'mcp' || tool.type === 'platform',
    staleTime: 60_000,
  })

function Actions({ tool }: { tool: Tool }) {
  const actions = useActions(tool)
  return (
    <Loaded query={actions} operation={listToolActions}>
      {rows => (
        <Stack gap="xs">
          {rows.map(({ name, description }) => (
            <Stack gap={0} key={name}>
              <Text className="mono">{visible(name)}</Text>
              {description && (
                <Text size="sm" c="dimmed" lineClamp={2}>
                  {visible(description)}
                </Text>
              )}
            </Stack>
          ))}
        </Stack>
      )}
    </Loaded>
  )
}

/** The guardrails of a tool. */
function Judges({ tool: { project_id, guardrail_ids } }: { tool: Tool }) {
  const { nameOf } = useGuardrails(project_id)
  if (!guardrail_ids?.length) return null
  return (
    <Section title={strings.agents.guardrails}>
      <Group gap="md">
        {guardrail_ids.map(id => (
          <Anchor key={id} component={Link} to={`/p/${project_id}/guardrails/${id}`} underline="always">
            {nameOf(id)}
          </Anchor>
        ))}
      </Group>
    </Section>
  )
}

/** The agents that use a tool. */
function Users({ tool }: { tool: Tool }) {
  const isAllowed = usePermissions(tool.project_id)
  const agents = useQuery({
    queryKey: [...toolKey(tool.id), 'agents'],
    queryFn: async ({ signal }) =>
      (await listAgents(api, { project_id: tool.project_id, tool_id: tool.id, limit: 100 }, { signal }).page()).data,
    enabled: isAllowed(listAgents) === true,
  })
  if (!agents.data?.length) return null
  return (
    <Section title={texts.usedBy}>
      <Group gap="md">
        {agents.data.map(({ id, name }) => (
          <Anchor key={id} component={Link} to={`/p/${tool.project_id}/agents/${id}`} underline="always">
            {visible(name ?? strings.agents.unnamed)}
          </Anchor>
        ))}
      </Group>
    </Section>
  )
}

const FREE_INPUT: ObjectSchema = {
  properties: { input: { type: 'object', title: texts.input, description: texts.inputHelp } },
}

/** Calls a tool, with a form made of its parameters. */
function Caller({ tool }: { tool: Tool }) {
  const actions = useActions(tool)
  const [chosen, setChosen] = useState<string | null>(null)
  const action = actions.data?.find(({ name }) => name === chosen) ?? actions.data?.[0] ?? null
  const needsAction = tool.type === 'mcp' || tool.type === 'platform'
  const schema = (needsAction ? action?.input_schema : tool.parameters) as ObjectSchema | null | undefined
  const hasFields = Object.keys(schema?.properties ?? {}).length > 0
  const call = useMutation({
    mutationFn: async (values: Values) => {
      const input = hasFields ? values : (values.input as Values | undefined)
      const start = performance.now()
      const args = { tool_id: tool.id, ...(action ? { action: action.name } : {}), ...(input ? { input } : {}) }
      const result: unknown = await callTool(api, args)
      return { result, ms: performance.now() - start }
    },
  })
  const meta = call.error instanceof MusterError ? call.error.meta : undefined
  const preset = Object.keys(tool.preset_parameters ?? {})
  return (
    <Stack gap="lg">
      <Section title={texts.call}>
        {needsAction && (
          <Loaded query={actions} operation={listToolActions}>
            {rows => (
              <Select
                label={texts.action}
                description={action?.description && visible(action.description)}
                data={rows.map(({ name }) => ({ value: name, label: visible(name) }))}
                value={action?.name ?? null}
                onChange={setChosen}
                allowDeselect={false}
                searchable
                nothingFoundMessage={strings.nothingFound}
              />
            )}
          </Loaded>
        )}
        {(!needsAction || action) && (
          <SchemaForm
            key={action?.name}
            schema={hasFields && schema ? schema : FREE_INPUT}
            // What the tool presets cannot be given.
            omit={preset}
            submitLabel={texts.callButton}
            isPending={call.isPending}
            error={call.error}
            onSubmit={call.mutate}
          />
        )}
        {meta !== undefined && Object.keys(meta).length > 0 && <Value value={meta} label={texts.errorDetails} />}
      </Section>
      {call.data && (
        <Section title={texts.result(durationText(call.data.ms))}>
          <div role="status">
            <Value value={call.data.result ?? null} label={texts.resultLabel} />
          </div>
        </Section>
      )}
    </Stack>
  )
}
