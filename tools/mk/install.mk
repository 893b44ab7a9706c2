# install.mk - make install, make uninstall
DEST      = "$(DESTDIR)$(PREFIX)"
DOCUMENTS = README.md LICENSE CHANGELOG.md CITATION.cff CONTRIBUTING.md
BUILT_WITH = $(firstword $(notdir $(MPICC))), $(shell $(MPICC) --version 2>/dev/null | head -1), $(LAUNCHER), HDF5 $(or $(shell pkg-config --modversion $(HDF5) 2>/dev/null),unknown)
MODULES   ?= $(shell cat $(BUILD)/modules 2>/dev/null)# environment modules that the installed one asks for: those loaded when this was built
ifneq ($(filter install uninstall,$(MAKECMDGOALS)),)
$(if $(filter /%,$(PREFIX)),,$(error PREFIX: expected an absolute path, found '$(PREFIX)'))
endif
install: all  ## install to PREFIX (DESTDIR honoured): programs, man pages, documentation, examples, job scripts, modulefiles
	install -d $(addprefix $(DEST)/,bin share/man/man1 share/doc/dtrain/docs/data share/dtrain/input/models share/dtrain/jobs share/dtrain/tools share/bash-completion/completions share/zsh/site-functions share/modulefiles/dtrain)
	install -m 755 $(PROGRAMS:%=$(BUILD)/%) $(DEST)/bin
	$(if $(CUDA_LIB),install -d $(DEST)/lib/dtrain && install -m 755 $(CUDA_LIB) $(DEST)/lib/dtrain)
	install -m 644 $(wildcard docs/*.1) $(DEST)/share/man/man1
	install -m 644 $(DOCUMENTS) $(DEST)/share/doc/dtrain
	install -m 644 $(wildcard docs/*.md docs/*.svg) $(DEST)/share/doc/dtrain/docs
	install -m 644 $(wildcard docs/data/*.csv) $(DEST)/share/doc/dtrain/docs/data
	install -m 644 $(wildcard input/*.ini input/*.json input/*.jsonl) $(DEST)/share/dtrain/input
	for p in $(PROGRAMS); do install -m 644 tools/completion/dtrain.bash $(DEST)/share/bash-completion/completions/$$p || exit 1; done
	install -m 644 tools/completion/_dtrain $(DEST)/share/zsh/site-functions
	install -m 755 tools/wandb_offline.py $(wildcard tools/reward_*) $(DEST)/share/dtrain/tools
	install -m 644 $(wildcard input/models/*) $(DEST)/share/dtrain/input/models
	for job in $(wildcard jobs/*); do sed "s|^bin=.*|bin='$(PREFIX)/bin'|" $$job > $(DEST)/share/dtrain/$$job && chmod 644 $(DEST)/share/dtrain/$$job || exit 1; done
	for form in '' .lua; do sed -e 's|@PREFIX@|$(PREFIX)|g; s|@VERSION@|$(VERSION)|g; s|@MODULES@|$(MODULES)|g; s|@BUILT_WITH@|$(BUILT_WITH)|g' \
	  tools/modulefile$$form.in > $(DEST)/share/modulefiles/dtrain/$(VERSION)$$form || exit 1; done
uninstall:  ## remove from PREFIX what make install wrote for this version
	rm -f $(addprefix $(DEST)/bin/,$(PROGRAMS)) $(addprefix $(DEST)/share/bash-completion/completions/,$(PROGRAMS)) $(DEST)/share/zsh/site-functions/_dtrain
	rm -f $(addprefix $(DEST)/share/man/man1/,$(notdir $(wildcard docs/*.1))) $(addprefix $(DEST)/share/modulefiles/dtrain/$(VERSION),'' .lua)
	rm -rf $(addprefix $(DEST)/,share/doc/dtrain share/dtrain lib/dtrain)
