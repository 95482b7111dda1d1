import fields from 'fields:updateProject'
import { Box, Group, Stack, Switch, Text, TextInput } from '@mantine/core'
import type { Project } from '@muster/client'
import { deleteProject, getProject, pauseProject, updateProject } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { useState } from 'react'
import { api } from '#api.ts'
import { FormButton, useAction } from '#components/actions.tsx'
import { PauseButton } from '#components/pause.tsx'
import { Section } from '#components/record.tsx'
import { SchemaForm, SubmitRow, type Values } from '#components/schema-form.tsx'
import { Loaded } from '#components/states.tsx'
import { CopyText, visible } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.settings

/** The fields of a project, in sections that are saved separately. */
const SECTIONS = [
  { title: texts.general, only: ['name', 'description', 'search_language', 'default_model_route_id', 'guardrail_ids'] },
  {
    title: texts.retention,
    only: [
      'trace_content_mode',
      'trace_content_retention_days',
      'trace_retention_days',
      'conversation_retention_days',
      'run_retention_days',
      'content_hold_until',
    ],
  },
  {
    title: texts.limits,
    only: [
      'max_concurrent_runs',
      'max_run_depth',
      'max_chain_generations',
      'require_priced_model',
      'audit_reads_enabled',
    ],
  },
]

export function ProjectSettings() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const project = useQuery<Project>({
    queryKey: ['project', projectId],
    queryFn: async ({ signal }) => getProject(api, { project_id: projectId }, { signal }),
    // Never replaces an open edit.
    refetchOnWindowFocus: false,
  })
  return (
    <Loaded query={project} operation={getProject}>
      {record => (
        <Stack gap="lg">
          <Group gap="sm">
            <Text size="sm" c="dimmed" className="mono">
              {record.id}
            </Text>
            <CopyText text={record.id} />
          </Group>
          {SECTIONS.map(({ title, only }) => (
            <Section title={title} key={title}>
              <ProjectForm
                // Another section that was saved leaves the typed text.
                key={JSON.stringify(only.map(name => record[name as keyof Project]))}
                project={record}
                only={only}
                isReadOnly={!isAllowed(updateProject)}
              />
            </Section>
          ))}
          <Section title={texts.stop}>
            <Text size="sm" c="dimmed">
              {texts.stopText}
            </Text>
            <Group gap="sm">
              {!record.paused_at && isAllowed(pauseProject) && <PauseButton projectId={projectId} />}
              {isAllowed(deleteProject) && (
                <FormButton
                  label={texts.delete}
                  color="red"
                  variant="outline"
                  form={close => <DeleteForm project={record} onDone={close} />}
                />
              )}
            </Group>
          </Section>
        </Stack>
      )}
    </Loaded>
  )
}

function ProjectForm({ project, only, isReadOnly }: { project: Project; only: string[]; isReadOnly: boolean }) {
  const save = useAction({
    run: async (values: Values) => updateProject(api, { project_id: project.id, ...values }),
    stale: [['project', project.id], ['projects']],
    message: texts.saved,
  })
  return (
    <Box maw={640}>
      <SchemaForm
        schema={fields}
        initial={project as Values}
        only={only}
        isReadOnly={isReadOnly}
        isPending={save.isPending}
        error={save.error}
        onSubmit={values => save.mutate(values)}
      />
    </Box>
  )
}

/** Deletes a project after its name was typed. */
function DeleteForm({ project, onDone }: { project: Project; onDone: () => void }) {
  const navigate = useNavigate()
  const [name, setName] = useState('')
  const [isForced, setForced] = useState(false)
  const remove = useAction({
    run: async () => deleteProject(api, { project_id: project.id, ...(isForced ? { force: true } : {}) }),
    stale: [['projects']],
    onDone: () => {
      onDone()
      void navigate({ to: '/' })
    },
  })
  return (
    <form
      onSubmit={event => {
        event.preventDefault()
        remove.mutate()
      }}
    >
      <Stack gap="md">
        <Text>{texts.deleteText}</Text>
        <TextInput
          label={texts.typeName(visible(project.name))}
          value={name}
          onChange={event => setName(event.currentTarget.value)}
          data-autofocus
        />
        <Switch label={texts.force} checked={isForced} onChange={event => setForced(event.currentTarget.checked)} />
        <SubmitRow
          label={texts.delete}
          isPending={remove.isPending}
          error={remove.error}
          onCancel={onDone}
          color="red"
          disabled={name !== project.name}
        />
      </Stack>
    </form>
  )
}
