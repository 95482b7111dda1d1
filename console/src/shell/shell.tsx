import {
  ActionIcon,
  Alert,
  Anchor,
  AppShell,
  Badge,
  Burger,
  Button,
  Group,
  Kbd,
  Menu,
  NavLink,
  ScrollArea,
  Stack,
  Text,
  useMantineColorScheme,
} from '@mantine/core'
import { useDisclosure, useHotkeys } from '@mantine/hooks'
import { resumeProject } from '@muster/client/operations'
import {
  IconCheck,
  IconDeviceDesktop,
  IconLogout,
  IconMoon,
  IconPlayerPause,
  IconSearch,
  IconSun,
  IconUser,
} from '@tabler/icons-react'
import { useMutation, useQueryClient } from '@tanstack/react-query'
import { Link, Outlet, useParams, useRouterState } from '@tanstack/react-router'
import { useEffect, useRef } from 'react'
import { api } from '#api.ts'
import { Mark } from '#components/mark.tsx'
import { Loading, Refused } from '#components/states.tsx'
import { visible } from '#components/text.tsx'
import { useActivity } from '#inbox/activity.ts'
import { useWaiting } from '#inbox/waiting.ts'
import { useMe, usePermissions, useProjects } from '#projects.ts'
import { useConfig } from '#session/gate.tsx'
import { signOut } from '#session/tokens.ts'
import * as strings from '#strings.ts'
import { CommandPalette } from './commands.tsx'
import { GROUPS, maySee, NAVIGATION } from './navigation.ts'
import { ProjectSwitcher } from './switcher.tsx'

const texts = strings.shell

const SCHEMES = [
  ['light', texts.light, IconSun],
  ['dark', texts.dark, IconMoon],
  ['auto', texts.auto, IconDeviceDesktop],
] as const

/** Frame of all views: header, navigation, and the view. */
export function Shell() {
  const { projectId } = useParams({ strict: false })
  const [isOpen, { toggle, close }] = useDisclosure()
  const [isPaletteOpen, palette] = useDisclosure()
  const main = useRef<HTMLElement>(null)
  const pathname = useRouterState({ select: state => state.location.pathname })
  useHotkeys([['mod+K', palette.open]])
  useActivity(projectId)
  // Another view closes the menu of a phone and receives the focus.
  const last = useRef(pathname)
  useEffect(() => {
    if (last.current === pathname) return
    last.current = pathname
    close()
    main.current?.focus()
  }, [pathname, close])
  return (
    <AppShell
      header={{ height: 56 }}
      navbar={{ width: 232, breakpoint: 'sm', collapsed: { mobile: !isOpen, desktop: !projectId } }}
      padding={{ base: 'md', sm: 'xl' }}
    >
      <Anchor href="#content" className="skip-link" underline="always">
        {strings.skip}
      </Anchor>
      <AppShell.Header>
        <Group h="100%" px="md" gap="sm" wrap="nowrap">
          {projectId && (
            <Burger
              opened={isOpen}
              onClick={toggle}
              hiddenFrom="sm"
              size="sm"
              aria-label={texts.menu}
              aria-expanded={isOpen}
            />
          )}
          <Group gap="xs" wrap="nowrap" visibleFrom="sm">
            <Mark />
            <Text fw={700} size="lg">
              {strings.product}
            </Text>
          </Group>
          <ProjectSwitcher projectId={projectId} />
          <Group gap={4} ml="auto" wrap="nowrap">
            <Button
              variant="default"
              color="gray"
              size="xs"
              leftSection={<IconSearch size={14} />}
              rightSection={<Kbd size="xs">Ctrl K</Kbd>}
              onClick={palette.open}
              visibleFrom="sm"
            >
              {texts.commands}
            </Button>
            <ActionIcon onClick={palette.open} hiddenFrom="sm" aria-label={texts.commands}>
              <IconSearch size={20} />
            </ActionIcon>
            <AccountMenu />
          </Group>
        </Group>
      </AppShell.Header>
      <AppShell.Navbar aria-label={texts.navigation}>
        <AppShell.Section grow component={ScrollArea} p="sm">
          {projectId && <Navigation projectId={projectId} pathname={pathname} />}
        </AppShell.Section>
      </AppShell.Navbar>
      <AppShell.Main id="content" ref={main} tabIndex={-1}>
        <Stack gap="md" maw={1120} mx="auto">
          {projectId && <PausedBanner projectId={projectId} />}
          {projectId ? <PermittedView projectId={projectId} pathname={pathname} /> : <Outlet />}
        </Stack>
      </AppShell.Main>
      <CommandPalette projectId={projectId} isOpen={isPaletteOpen} onClose={palette.close} />
    </AppShell>
  )
}

/** Shows a view to those who may see it; others learn which permission is missing, and nothing is requested. */
function PermittedView({ projectId, pathname }: { projectId: string; pathname: string }) {
  const isAllowed = usePermissions(projectId)
  const view = NAVIGATION.find(({ path }) => isBelow(pathname, `/p/${projectId}/${path}`))
  if (!view) return <Outlet />
  const allowed = maySee(view, isAllowed)
  if (allowed === undefined) return <Loading />
  return allowed ? <Outlet /> : <Refused operation={view.operation} />
}

/** Whether an address, with or without the base of the console, belongs to a view or is below it. */
const isBelow = (pathname: string, to: string): boolean => `${pathname}/`.includes(`${to}/`)

function Navigation({ projectId, pathname }: { projectId: string; pathname: string }) {
  const isAllowed = usePermissions(projectId)
  const groups = GROUPS.map(({ name, views }) => ({ name, views: views.filter(view => maySee(view, isAllowed)) }))
  return (
    <Stack gap="md">
      {groups
        .filter(({ views }) => views.length > 0)
        .map(({ name: group, views }) => (
          <Stack gap={2} key={group} role="group" aria-label={group}>
            <Text size="xs" c="dimmed" fw={600} px="sm" aria-hidden>
              {group}
            </Text>
            {views.map(({ name, path, icon: Icon }) => {
              const to = `/p/${projectId}/${path}`
              const isActive = isBelow(pathname, to)
              return (
                <NavLink
                  key={path}
                  component={Link}
                  to={to}
                  label={name}
                  leftSection={<Icon size={18} stroke={1.7} aria-hidden />}
                  rightSection={path === 'inbox' && <Waiting projectId={projectId} />}
                  active={isActive}
                  aria-current={isActive ? 'page' : undefined}
                />
              )
            })}
          </Stack>
        ))}
    </Stack>
  )
}

/** How much waits in the inbox. */
function Waiting({ projectId }: { projectId: string }) {
  const count = useWaiting(projectId)
  return count > 0 ? (
    <Badge variant="default" aria-label={strings.inbox.waiting(count)}>
      {count.toLocaleString()}
    </Badge>
  ) : null
}

function AccountMenu() {
  const { data: me } = useMe()
  const { docs_url } = useConfig()
  const { colorScheme, setColorScheme } = useMantineColorScheme()
  return (
    <Menu position="bottom-end" width={220}>
      <Menu.Target>
        <ActionIcon aria-label={texts.account}>
          <IconUser size={20} />
        </ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        {me && <Menu.Label>{visible(me.display_name ?? me.username)}</Menu.Label>}
        <Menu.Item component="a" href={docs_url} target="_blank" rel="noopener noreferrer">
          {texts.docs}
        </Menu.Item>
        <Menu.Divider />
        <Menu.Label>{texts.theme}</Menu.Label>
        {SCHEMES.map(([scheme, name, Icon]) => (
          <Menu.Item
            key={scheme}
            aria-current={colorScheme === scheme}
            leftSection={<Icon size={16} />}
            rightSection={colorScheme === scheme && <IconCheck size={16} />}
            onClick={() => setColorScheme(scheme)}
          >
            {name}
          </Menu.Item>
        ))}
        <Menu.Divider />
        <Menu.Item leftSection={<IconLogout size={16} />} onClick={() => void signOut('chosen')}>
          {texts.signOut}
        </Menu.Item>
      </Menu.Dropdown>
    </Menu>
  )
}

function PausedBanner({ projectId }: { projectId: string }) {
  const { data } = useProjects()
  const isAllowed = usePermissions(projectId)
  const cache = useQueryClient()
  const resume = useMutation({
    mutationFn: async () => resumeProject(api, { project_id: projectId }),
    onSuccess: () => cache.invalidateQueries({ queryKey: ['projects'] }),
  })
  const project = data?.data.find(({ id }) => id === projectId)
  if (!project?.paused_at) return null
  return (
    <Alert icon={<IconPlayerPause />} color="yellow" role="status">
      <Group justify="space-between">
        <Text size="sm">{texts.paused(project.pause_reason && visible(project.pause_reason))}</Text>
        {isAllowed(resumeProject) && (
          <Button size="xs" variant="default" loading={resume.isPending} onClick={() => resume.mutate()}>
            {texts.resume}
          </Button>
        )}
      </Group>
    </Alert>
  )
}
