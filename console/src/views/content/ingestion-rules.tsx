import resolveFields from 'fields:resolveIngestionRule'
import { Stack, Text } from '@mantine/core'
import type { IngestionRule } from '@muster/client'
import { createIngestionRule, listIngestionRules, resolveIngestionRule } from '@muster/client/operations'
import { IconFileImport, IconPlus } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { api } from '#api.ts'
import { useAgents, useTools } from '#choices.ts'
import { FormButton, useAction } from '#components/actions.tsx'
import { EntityLink } from '#components/entity-link.tsx'
import { type Column, ListView, RecordLink, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { Section } from '#components/record.tsx'
import { SchemaForm, type Values } from '#components/schema-form.tsx'
import { Notice } from '#components/states.tsx'
import { StatusBadge } from '#components/status.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { IngestionRuleForm } from './ingestion-rule-form.tsx'

const texts = strings.ingestionRules

/** Ingestion rules of a project, and which of them applies to a file. */
export function IngestionRules() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const navigate = useNavigate()
  const list = useList<IngestionRule>(['ingestion-rules', projectId], async (_, bounds, signal) =>
    listIngestionRules(api, { project_id: projectId, ...bounds }, { signal }).page(),
  )
  const columns: Column<IngestionRule>[] = [
    {
      title: texts.glob,
      isWide: true,
      cell: ({ id, content_type_glob }) => (
        <RecordLink to={`/p/${projectId}/ingestion-rules/${id}`}>{visible(content_type_glob)}</RecordLink>
      ),
    },
    {
      title: texts.folder,
      cell: ({ path_prefix }) => <Text inherit>{visible(path_prefix ?? texts.everywhere)}</Text>,
    },
    { title: texts.converter, cell: rule => <Converter {...rule} /> },
    {
      title: strings.state,
      cell: ({ enabled }) => (
        <StatusBadge status={enabled ? 'active' : 'inactive'} label={enabled ? texts.enabled : texts.disabled} />
      ),
    },
    { title: strings.updated, cell: ({ updated_at }) => <When at={updated_at} /> },
  ]
  const create = isAllowed(createIngestionRule) && (
    <FormButton
      label={texts.create}
      leftSection={<IconPlus size={16} />}
      form={close => (
        <IngestionRuleForm
          onDone={id => void navigate({ to: `/p/${projectId}/ingestion-rules/${id}` })}
          onCancel={close}
        />
      )}
    />
  )
  return (
    <Page title={strings.nav.ingestionRules} intro={texts.intro} actions={create}>
      <ListView
        label={strings.nav.ingestionRules}
        list={list}
        operation={listIngestionRules}
        columns={columns}
        empty={
          <Notice icon={<IconFileImport />} title={texts.empty} action={create} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
      {isAllowed(resolveIngestionRule) && <Resolution rules={list.query.data?.data ?? []} />}
    </Page>
  )
}

/** The agent or the tool that turns files into text. */
export function Converter({ agent_id, tool_id }: Pick<IngestionRule, 'agent_id' | 'tool_id'>) {
  const projectId = useProjectId()
  const agents = useAgents(projectId)
  const tools = useTools(projectId)
  if (agent_id) return <EntityLink kind="agent" id={agent_id} projectId={projectId} name={agents.nameOf(agent_id)} />
  if (tool_id) return <EntityLink kind="tool" id={tool_id} projectId={projectId} name={tools.nameOf(tool_id)} />
  return <>{texts.builtIn}</>
}

const schema = {
  properties: {
    content_type: { ...resolveFields.properties?.content_type, title: texts.type, description: '' },
    path: { ...resolveFields.properties?.path, title: texts.path, description: '' },
  },
  required: ['content_type'],
}

/** Finds the rule that applies to a media type and a path. */
function Resolution({ rules }: { rules: IngestionRule[] }) {
  const projectId = useProjectId()
  const resolve = useAction<Values, { rule_id: string | null; native: boolean }>({
    run: async values => resolveIngestionRule(api, { ...(values as { content_type: string }), project_id: projectId }),
  })
  const answer = resolve.data
  const rule = rules.find(({ id }) => id === answer?.rule_id)
  return (
    <Section title={texts.resolve}>
      <Text c="dimmed">{texts.resolveText}</Text>
      <SchemaForm
        schema={schema}
        submitLabel={texts.find}
        isPending={resolve.isPending}
        error={resolve.error}
        onSubmit={values => resolve.mutate(values)}
      />
      <Stack gap={4} role="status">
        {answer?.rule_id && (
          <Text component="div">
            {texts.applies}{' '}
            <EntityLink
              kind="ingestion_rule"
              id={answer.rule_id}
              projectId={projectId}
              name={rule && [rule.content_type_glob, rule.path_prefix].filter(Boolean).join(' ')}
            />
          </Text>
        )}
        {answer && answer.rule_id === null && <Text>{answer.native ? texts.noRule : texts.refused}</Text>}
      </Stack>
    </Section>
  )
}
