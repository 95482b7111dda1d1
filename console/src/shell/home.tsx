import { Button, Stack, TextInput } from '@mantine/core'
import { useForm } from '@mantine/form'
import { createProject, listProjects } from '@muster/client/operations'
import { IconFolderPlus, IconLock } from '@tabler/icons-react'
import { useMutation, useQueryClient } from '@tanstack/react-query'
import { Navigate, useNavigate } from '@tanstack/react-router'
import { api } from '#api.ts'
import { FailureAlert, Loaded, Notice } from '#components/states.tsx'
import { useMe, useProjects } from '#projects.ts'
import * as strings from '#strings.ts'

/** Leads to a project; to the form of the first one while there is none. */
export function Home() {
  const projects = useProjects()
  const me = useMe()
  return (
    <Loaded query={projects} operation={listProjects}>
      {({ data }) => {
        if (data.length > 0) return <Navigate to="/p/$projectId/start" params={{ projectId: data[0].id }} replace />
        if (me.data?.role !== 'admin')
          return (
            <Notice icon={<IconLock />} title={strings.shell.noProjects}>
              {strings.shell.noProjectsText}
            </Notice>
          )
        return (
          <Notice icon={<IconFolderPlus />} title={strings.shell.firstProject} action={<ProjectForm />} color="indigo">
            {strings.shell.firstProjectText}
          </Notice>
        )
      }}
    </Loaded>
  )
}

/** Creates a project and opens it. */
export function ProjectForm({ onDone }: { onDone?: () => void }) {
  const cache = useQueryClient()
  const navigate = useNavigate()
  const form = useForm({
    initialValues: { name: '' },
    validate: { name: value => (value.trim() ? null : strings.shell.projectName) },
  })
  const create = useMutation({
    mutationFn: async ({ name }: { name: string }) => createProject(api, { name: name.trim() }),
    onSuccess: async ({ id }) => {
      await cache.invalidateQueries({ queryKey: ['projects'] })
      onDone?.()
      await navigate({ to: '/p/$projectId/start', params: { projectId: id } })
    },
  })
  return (
    <form onSubmit={form.onSubmit(values => create.mutate(values))}>
      <Stack gap="sm" ta="left" miw={260}>
        <TextInput label={strings.shell.projectName} data-autofocus {...form.getInputProps('name')} />
        {create.error && <FailureAlert error={create.error} />}
        <Button type="submit" loading={create.isPending}>
          {strings.create}
        </Button>
      </Stack>
    </form>
  )
}
